// A compiled program of the stand-in: a plan of the CPU executor behind ports with the engine's strides. C, so that the
// Objective-C file can use it.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fake_program fake_program;

typedef struct fake_port {
  const char *name, *dtype;
  int64_t shape[4];  // batches, channels, height, width
  uint64_t row_stride, plane_stride, batch_stride, bytes;
} fake_port;

// Null, and `why`, if the plan has ports that no engine has.
fake_program* fake_program_make(const void* plan, size_t bytes, char* why, size_t why_bytes);
void fake_program_free(fake_program* program);
size_t fake_program_num_ports(const fake_program* program, bool output);
fake_port fake_program_port(const fake_program* program, bool output, size_t index);
bool fake_program_run(fake_program* program, void* const* inputs, void* const* outputs, char* why, size_t why_bytes);

// Whether every BLOBFILE of the text leads to metadata, in a file below the folder, of the dtype and size of the
// constant.
bool fake_check_blobs(const char* folder, const char* mil, size_t mil_bytes, char* why, size_t why_bytes);

// Whether the text is MIL by the grammar that the engine's compiler is known to accept.
bool fake_check_grammar(const char* mil, size_t mil_bytes, char* why, size_t why_bytes);

// Whether ops of early opsets have their arguments as attributes, which is how the engine's compiler takes them.
bool fake_check_spelling(const char* mil, size_t mil_bytes);

#ifdef __cplusplus
}
#endif
