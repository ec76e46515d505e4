/* Core ML's public API in C99: compiled models, predictions over the caller's memory, states, and what Core ML plans.
 *
 *   hexane_coreml_compile(NULL, "Net.mlpackage", folder, sizeof folder, &error);    // the caller deletes the folder
 *   hexane_coreml_model *model = hexane_coreml_load(NULL, folder, HEXANE_COREML_CPU_AND_NE, NULL, &error);
 *   hexane_coreml_predict(model, NULL, inputs, num_inputs, outputs, num_outputs, &error);
 *   hexane_coreml_free(model);
 *
 * A function that fails returns NULL or false and fills the error, whose text begins with the domain and number of the
 * NSError. `framework` is the path of the library to open, NULL: macOS' own. Any thread may call any function.
 * Predictions of one model wait for each other, as Apple requires; hexane_coreml_predict_async does not wait.
 */
#pragma once

#include "hexane_ane.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hexane_coreml_model hexane_coreml_model;
typedef struct hexane_coreml_state hexane_coreml_state;
typedef struct hexane_coreml_buffer hexane_coreml_buffer;

/* The devices that Core ML may choose from. */
typedef enum hexane_coreml_units {
  HEXANE_COREML_CPU = 0,
  HEXANE_COREML_CPU_AND_GPU = 1,
  HEXANE_COREML_ALL = 2,
  HEXANE_COREML_CPU_AND_NE = 3, /* macOS 13 */
} hexane_coreml_units;

typedef enum hexane_coreml_side { HEXANE_COREML_INPUT, HEXANE_COREML_OUTPUT, HEXANE_COREML_STATE } hexane_coreml_side;

typedef struct hexane_coreml_port {
  const char* name;
  const char* kind;  /* "array", or for other features "image", "string", "number" or "other". */
  const char* dtype; /* Dtype of an array ("fp64", "fp32", "fp16", "int32" or "int8"), else "". */
  size_t rank;
  const int64_t* shape; /* for a varying shape, the default shape */
  bool optional;
} hexane_coreml_port;

/* The caller's memory of a port. */
typedef struct hexane_coreml_array {
  const char* name;
  const char* dtype;
  void* data;
  size_t rank; /* at least 1 */
  const int64_t* shape;
  const int64_t* strides; /* Strides in elements, as Core ML counts them; not negative. */
  bool copied;            /* Set for outputs: Core ML used memory of its own, and the result was copied from there. */
  hexane_coreml_buffer* buffer; /* Owner of the memory of `data`; NULL: the caller. */
} hexane_coreml_array;

/* Memory of fp16 that Core ML passes to the engine without a copy (macOS 12): a pixel buffer. Rows, along the last
 * axis, may have gaps between them. The caller may use the data except while a prediction with this buffer runs; one
 * prediction at a time may use a buffer. */
HEXANE_ANE_API hexane_coreml_buffer* hexane_coreml_new_buffer(const char* framework, size_t rank, const int64_t* shape,
                                                              hexane_ane_error* error);
HEXANE_ANE_API void* hexane_coreml_buffer_data(const hexane_coreml_buffer* buffer);
HEXANE_ANE_API const int64_t* hexane_coreml_buffer_strides(const hexane_coreml_buffer* buffer); /* element strides */
HEXANE_ANE_API void hexane_coreml_free_buffer(hexane_coreml_buffer* buffer);

/* Writes the path of the compiled model, a folder in the temporary folder, which the caller deletes. */
HEXANE_ANE_API bool hexane_coreml_compile(const char* framework, const char* package, char* folder, size_t folder_bytes,
                                          hexane_ane_error* error);
/* function: a name in a package of several functions; NULL: the default function. */
HEXANE_ANE_API hexane_coreml_model* hexane_coreml_load(const char* framework, const char* folder,
                                                       hexane_coreml_units units, const char* function,
                                                       hexane_ane_error* error);
HEXANE_ANE_API void hexane_coreml_free(hexane_coreml_model* model);

HEXANE_ANE_API size_t hexane_coreml_num_ports(const hexane_coreml_model* model, hexane_coreml_side side);
HEXANE_ANE_API hexane_coreml_port hexane_coreml_port_at(const hexane_coreml_model* model, hexane_coreml_side side,
                                                        size_t index);

/* state: `state` is NULL for a model without states. Outputs are written to the memory of the output arrays. */
HEXANE_ANE_API bool hexane_coreml_predict(hexane_coreml_model* model, hexane_coreml_state* state,
                                          const hexane_coreml_array* inputs, size_t num_inputs,
                                          hexane_coreml_array* outputs, size_t num_outputs, hexane_ane_error* error);
/* True if this system has asynchronous predictions (macOS 14). */
HEXANE_ANE_API bool hexane_coreml_has_async(const hexane_coreml_model* model);
/* Starts a prediction; `done` is called once, from another thread, with NULL or the error. All arrays and their data
 * must exist until the call of `done`. Returns false, without a call of `done`, if the prediction cannot be
 * started. */
typedef void (*hexane_coreml_done)(void* context, const hexane_ane_error* error);
HEXANE_ANE_API bool hexane_coreml_predict_async(hexane_coreml_model* model, const hexane_coreml_array* inputs,
                                                size_t num_inputs, hexane_coreml_array* outputs, size_t num_outputs,
                                                hexane_coreml_done done, void* context, hexane_ane_error* error);

/* Returns all states of a model, zeros at first (macOS 15). Predictions of one state wait for each other. */
HEXANE_ANE_API hexane_coreml_state* hexane_coreml_new_state(hexane_coreml_model* model, hexane_ane_error* error);
HEXANE_ANE_API void hexane_coreml_free_state(hexane_coreml_state* state);
/* Copies the state with the array's name to the array, or the array to the state. */
HEXANE_ANE_API bool hexane_coreml_read_state(hexane_coreml_state* state, hexane_coreml_array* array,
                                             hexane_ane_error* error);
HEXANE_ANE_API bool hexane_coreml_write_state(hexane_coreml_state* state, const hexane_coreml_array* array,
                                              hexane_ane_error* error);

/* Core ML's plan for an operation (macOS 14.4). Devices: "cpu", "gpu", "ne". */
typedef struct hexane_coreml_operation {
  const char* operator_name; /* For example "ios16.relu". */
  const char* output;        /* The name of the operation's first result. */
  const char* preferred;     /* The preferred device; "": Core ML names none, as for constants. */
  const char* supported;     /* For example "cpu,ne". */
  double cost;               /* Share of the model's cost, 0 to 1; negative: Core ML gives none. */
} hexane_coreml_operation;
typedef void (*hexane_coreml_visit)(void* context, const hexane_coreml_operation* operation);
/* Calls `visit` for each operation in order, from the calling thread. */
HEXANE_ANE_API bool hexane_coreml_plan(const char* framework, const char* folder, hexane_coreml_units units,
                                       const char* function, hexane_coreml_visit visit, void* context,
                                       hexane_ane_error* error);

/* Calls `line` for each class and method of Core ML that Hexane uses: kind "class" or "selector", found "yes" or "",
 * and as `need` the first macOS that has it. */
HEXANE_ANE_API bool hexane_coreml_probe(const char* framework, hexane_ane_line line, void* context,
                                        hexane_ane_error* error);

#ifdef __cplusplus
}
#endif
