// What tests tell the stand-in for Core ML.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_COREML_API __attribute__((visibility("default")))

typedef struct fake_coreml_reply fake_coreml_reply;

// Describes the package at the path, and answers before it returns, in lines of
//   id WORD                                       the name of the model in calls of `predict`
//   input|output|state NAME DTYPE 1,3,8,8 [optional]
//   image NAME                                    an input
//   op OPERATOR OUTPUT PREFERRED|- SUPPORTED|- COST
typedef void (*fake_coreml_describe)(const char* package, fake_coreml_reply* reply);

typedef struct fake_coreml_value {
  const char* name;
  const char* side;  // "input", "output" or "state"
  void* data;        // packed
  size_t bytes;
} fake_coreml_value;
// Reads inputs, writes outputs, and reads and writes states; refuses by an answer.
typedef void (*fake_coreml_predict)(const char* id, const fake_coreml_value* values, size_t num_values,
                                    fake_coreml_reply* reply);

FAKE_COREML_API void fake_coreml_set_host(fake_coreml_describe describe, fake_coreml_predict predict);
FAKE_COREML_API void fake_coreml_answer(fake_coreml_reply* reply, const char* text);
FAKE_COREML_API void fake_coreml_refuse(fake_coreml_reply* reply, const char* reason);

// "macos": 1404 is macOS 14.4, whose methods are there; "uses_backings": 0 makes results of its own memory, whose rows
// have gaps; "new_arrays": 1 makes another array over the pixel buffer of a result; "raise": predictions raise;
// "refuse_locks": pixel buffers do not lock; "moves": bytes by which their data lie elsewhere. False for an unknown
// name.
FAKE_COREML_API bool fake_coreml_set(const char* name, int64_t value);
FAKE_COREML_API int64_t fake_coreml_live(void);    // objects of the stand-in's classes
FAKE_COREML_API int64_t fake_coreml_faults(void);  // messages to freed ones
FAKE_COREML_API int64_t fake_coreml_units(void);   // of the model that was loaded last
