// encoded_conv: a convolution of one group with weights [O, KH * KW * C] in integers or indices, channels innermost,
// decoded in every call.
//
// sparse_conv: such a convolution with a weight stored without its zeros (sparse.h).
#include <vector>

#include "cpu/region.h"
#include "cpu/spatial/conv.h"

namespace hexane::cpu {
namespace {

// A weight that is stored as two operands, a matrix [out, kernel_h * kernel_w * in].
struct StoredWeight {
  int64_t kernel_h, kernel_w;
  int64_t window_shape[2], window_strides[2];  // Shape and strides of one pixel's window.
  Tensor window;                               // A window as the left operand of the product.
};

void set_window(const char* kernel, const Call& call, const IntList& kernel_sizes, StoredWeight& w) {
  if (call.inputs.size() < 3 || call.outputs.size() != 1)
    fail(kernel, "got ", call.inputs.size(), " inputs and ", call.outputs.size(), " outputs, need at least 3 and 1");
  const Tensor& x = call.inputs[0];
  if (x.rank != 3 && x.rank != 4) fail(kernel, "ranks: got ", x.rank, " for x, need 4 (two spatial axes) or 3 (one)");
  const int64_t spatial = x.rank - 2, channels = x.shape[x.rank - 1];
  w.kernel_h = window_attribute(kernel, kernel_sizes, 0, spatial, 1, "kernel_sizes");
  w.kernel_w = spatial == 2 ? window_attribute(kernel, kernel_sizes, 1, spatial, 1, "kernel_sizes") : 1;
  const int64_t terms = checked_product(kernel, {w.kernel_h, w.kernel_w, std::max<int64_t>(channels, 1)});
  w.window_shape[0] = 1;
  w.window_shape[1] = channels ? terms : 0;
  w.window_strides[0] = w.window_strides[1] = 4;
  w.window = x;
  w.window.rank = 2;
  w.window.shape = w.window_shape;
  w.window.strides = w.window_strides;
}

// Sets the state of a convolution with a stored weight. The caller has set the fields of `s` about the storage.
void set_stored(const char* kernel, const Call& call, const StoredWeight& stored, int64_t columns,
                const ConvWindow& window, const Epilogue& epilogue, ConvState& s) {
  const Tensor& x = call.inputs[0];
  const int64_t shape[] = {columns, x.shape[x.rank - 1], stored.kernel_h, stored.kernel_w}, strides[] = {4, 4, 4, 4};
  Tensor w = call.inputs[1];
  w.dtype = DType::kFp32;
  w.rank = x.rank;
  w.shape = shape;
  w.strides = strides;
  w.constant = call.inputs[1].constant && call.inputs[2].constant;
  std::vector<Tensor> inputs(call.inputs.begin(), call.inputs.end());
  inputs[1] = w;
  Call seen = call;
  seen.inputs = inputs;
  s.bias_input = 3;
  set_geometry(kernel, s, seen, window);
  set_state(kernel, ieee_arithmetic(), call, w, epilogue, s);
}

}  // namespace

Prepared prepare_encoded_conv(const Call& call) {
  const auto& attrs = call.attributes<EncodedConvAttrs>();
  StoredWeight stored;
  set_window(kEncodedConv, call, attrs.kernel_sizes, stored);
  auto state = std::make_shared<ConvState>();
  ConvState& s = *state;
  s.encoded = true;
  s.encoded_w =
      encoded_panels(kEncodedConv, stored.window, call.inputs[1], call.inputs[2], attrs.bits, attrs.palette, false);
  set_stored(kEncodedConv, call, stored, s.encoded_w.columns, {attrs.strides, attrs.dilations, attrs.pads, 1},
             attrs.epilogue, s);
  return state;
}

Prepared prepare_sparse_conv(const Call& call) {
  const auto& attrs = call.attributes<SparseConvAttrs>();
  StoredWeight stored;
  set_window(kSparseConv, call, attrs.kernel_sizes, stored);
  auto state = std::make_shared<ConvState>();
  ConvState& s = *state;
  s.sparse = true;
  s.sparse_w = sparse_shape(kSparseConv, stored.window, call.inputs[1], call.inputs[2], attrs.columns, false);
  set_stored(kSparseConv, call, stored, attrs.columns, {attrs.strides, attrs.dilations, attrs.pads, 1}, attrs.epilogue,
             s);
  return state;
}

Box sparse_conv_needs(const Call& call, int input, const Box& out) {
  if (input == 1 || input == 2) return whole(call.inputs[input]);
  return conv_needs(call.state<ConvState>(), call, input, 4, out);
}

Box encoded_conv_needs(const Call& call, int input, const Box& out) {
  const auto& s = call.state<ConvState>();
  if (input != 1 && input != 2) return conv_needs(s, call, input, 4, out);
  Box box = whole(call.inputs[input]);
  if (input == 1)
    box[0] = code_rows(s.encoded_w, out[out.rank - 1]);
  else if (!call.attributes<EncodedConvAttrs>().palette)
    box[1] = out[out.rank - 1];
  return box;
}

}  // namespace hexane::cpu
