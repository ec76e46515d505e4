/* The runtime as a shared library with every kernel. The compiler asks this library which steps a device can run.
 * `hexane run --runtime c99` and tests run plans in this library. */
#include "../src/internal.h"

#define ADDRESS_OF_KERNEL(name) &hx_kernel_##name,
#define ADDRESS_OF_ACTIVATION(name) &hx_activation_##name,

static const hx_kernel* const kKernels[] = {HX_EACH_KERNEL(ADDRESS_OF_KERNEL) 0};
static const hx_activation* const kActivations[] = {HX_EACH_ACTIVATION(ADDRESS_OF_ACTIVATION) 0};
static const hx_codec* const kCodecs[] = {&hx_codec_lz4, 0};

/* Returns the name of kernel i; null after the last kernel. */
const char* hx_shared_kernel(uint32_t i) { return kKernels[i] ? kKernels[i]->name : 0; }

/* Returns a mask with a bit for each axis along which kernel i can compute a part of its output. */
uint32_t hx_shared_cuts(uint32_t i) { return kKernels[i]->cuts; }

/* Returns the name of activation i of the kernel "unary"; null after the last activation. */
const char* hx_shared_activation(uint32_t i) { return kActivations[i] ? kActivations[i]->name : 0; }

size_t hx_shared_net_bytes(void) { return sizeof(hx_net); }

hx_status hx_shared_load(hx_net* net, const void* plan, size_t bytes, hx_memory* memory, uint32_t num_memory) {
  return hx_load(net, plan, bytes, kKernels, kActivations, kCodecs, memory, num_memory);
}

void hx_shared_hooks(hx_net* net, int (*input)(void*, uint32_t, int32_t, int32_t, void*),
                     int (*output)(void*, uint32_t, int32_t, int32_t, const void*)) {
  net->hooks.input = input;
  net->hooks.output = output;
}

void hx_shared_yield(hx_net* net, int (*yield)(void*, uint32_t)) { net->hooks.yield = yield; }

const char* hx_shared_error(const hx_net* net, int part) {
  return part == 0 ? net->error.where : part == 1 ? net->error.name : net->error.what;
}

uint32_t hx_shared_error_row(const hx_net* net) { return net->error.row; }
