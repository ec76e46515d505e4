/* The Neural Engine in C99, for C users, ctypes and the C++ of csrc/device alike:
 *
 *   hexane_ane *ane = hexane_ane_open(&setup, &error);
 *   hexane_ane_program *program = hexane_ane_compile(ane, mil, mil_bytes, files, num_files, qos, &error);
 *   hexane_ane_load(program, qos, &error);
 *   hexane_ane_request *request = hexane_ane_bind(program, NULL, NULL, &error);  // makes its own surfaces
 *   hexane_ane_write(request, 0, x, x_bytes, &error);
 *   hexane_ane_evaluate(request, qos, &error);
 *   hexane_ane_read(request, 0, y, y_bytes, &error);
 *   hexane_ane_unbind(request), hexane_ane_free(program), hexane_ane_close(ane);
 *
 * A function that fails returns NULL or false and fills the error. Several requests may be evaluated at the same time,
 * each by one thread at a time. Any thread may call all other functions. The caller must not unload a program while a
 * request of the program runs.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEXANE_ANE_API __attribute__((visibility("default")))

typedef struct hexane_ane hexane_ane;
typedef struct hexane_ane_program hexane_ane_program;
typedef struct hexane_ane_request hexane_ane_request;

/* The error code if a call of the framework has not come back within its limit. */
#define HEXANE_ANE_NO_ANSWER INT64_MIN
/* The error code of hexane_ane_find if the service does not keep the program. */
#define HEXANE_ANE_NOT_KEPT (INT64_MIN + 1)

typedef struct hexane_ane_error {
  char stage[16]; /* "open", "files", "compile", "load", "bind", "copy", "evaluate", "unload" or "purge". */
  int64_t code;   /* The framework's own number, 0 if it gave none, or HEXANE_ANE_NO_ANSWER. */
  char text[1024];
  char hint[256]; /* advice, if any is known */
} hexane_ane_error;

/* Functions on memory that CPU and engine share. `surface` is the framework's handle, on a Mac an IOSurfaceRef. */
typedef struct hexane_ane_surfaces {
  void* (*create)(uint64_t bytes); /* zeroed; NULL if there is no memory */
  void (*release)(void* surface);
  void* (*base)(void* surface);
  uint64_t (*bytes)(void* surface);
  bool (*lock)(void* surface, bool to_read);
  bool (*unlock)(void* surface, bool to_read);
} hexane_ane_surfaces;

/* The limits depend on the operating system, so the caller provides them. */
typedef struct hexane_ane_setup {
  const char* framework;               /* NULL: the private framework of macOS. */
  void* (*find_class)(const char*);    /* NULL: the Objective-C runtime finds classes. */
  const hexane_ane_surfaces* surfaces; /* NULL: IOSurface, if the system has it. */
  uint32_t compile_limit;              /* Most programs that a process may compile, loads included; 0: any number. */
  uint32_t load_limit;                 /* Most programs that a process may have loaded at once. */
  uint32_t load_retry_ms;              /* A failed load is tried once more after this time. */
  uint32_t build_limit_ms;             /* A compile or load that takes longer fails; 0: it may take any time. */
  uint32_t evaluate_limit_ms;          /* An evaluation or unload that takes longer fails; 0: it may take any time. */
  uint64_t least_surface_bytes;        /* Least bytes of a surface that the library makes. */
} hexane_ane_setup;

typedef struct hexane_ane_file { /* A file that the MIL text names as BLOBFILE(path = "@model_path/<name>"). */
  const char* name;              /* For example "weights/weights.bin". */
  const void* data;
  size_t bytes;
} hexane_ane_file;

typedef struct hexane_ane_port {
  const char* name;  /* The port's name in the MIL text; lives as long as the program is loaded. */
  const char* dtype; /* "fp16", "fp32", "int8", "uint8", "int16" or "uint16". */
  int64_t shape[4];  /* Batches, channels, height, width. */
  uint64_t row_stride, plane_stride, batch_stride; /* Strides in bytes. */
  uint64_t bytes;                                  /* Bytes that the port's surface needs. */
} hexane_ane_port;

typedef struct hexane_ane_counters {
  uint64_t compiled, loaded;  /* Programs that this process compiled or has loaded, through any handle. */
  uint64_t compiles_in_loads; /* Loads in which the service had to compile the program. */
} hexane_ane_counters;

HEXANE_ANE_API hexane_ane* hexane_ane_open(const hexane_ane_setup* setup, hexane_ane_error* error);
HEXANE_ANE_API void hexane_ane_close(hexane_ane* ane); /* programs outlive the handle */
HEXANE_ANE_API hexane_ane_counters hexane_ane_count(void);

/* Calls `line` for each required part of the framework and each property of the machine. kind: "class", "selector" or
 * "device"; found: "" if missing; need: "" if any value will do. Returns false if there is no framework. */
typedef void (*hexane_ane_line)(void* context, const char* kind, const char* name, const char* found, const char* need);
HEXANE_ANE_API bool hexane_ane_probe(const hexane_ane_setup* setup, hexane_ane_line line, void* context,
                                     hexane_ane_error* error);
/* Calls `line` for every method of every class whose name begins with _ANE, known or not: kind "method". */
HEXANE_ANE_API bool hexane_ane_methods(const hexane_ane_setup* setup, hexane_ane_line line, void* context,
                                       hexane_ane_error* error);

/* Compiles the program, even if the service keeps it already. */
HEXANE_ANE_API hexane_ane_program* hexane_ane_compile(hexane_ane* ane, const char* mil, size_t mil_bytes,
                                                      const hexane_ane_file* files, size_t num_files, uint32_t qos,
                                                      hexane_ane_error* error);
/* Returns the program that the service keeps for this text and these weights, whichever process compiled it: such a
 * program loads without a compile. If a load of the kept program fails, hexane_ane_compile makes the program anew. */
HEXANE_ANE_API hexane_ane_program* hexane_ane_find(hexane_ane* ane, const char* mil, size_t mil_bytes,
                                                   const hexane_ane_file* files, size_t num_files,
                                                   hexane_ane_error* error);
HEXANE_ANE_API bool hexane_ane_load(hexane_ane_program* program, uint32_t qos, hexane_ane_error* error);
HEXANE_ANE_API bool hexane_ane_unload(hexane_ane_program* program, hexane_ane_error* error);
/* Makes the service forget the program; a loaded program stays loaded. Returns false if the framework lacks the
 * method. */
HEXANE_ANE_API bool hexane_ane_purge(hexane_ane_program* program, hexane_ane_error* error);
/* Calls `text` once with the framework's description of the loaded program, as an XML property list if possible. If the
 * program is not loaded, it is loaded for this call. The call works even if Hexane does not understand the ports. */
typedef void (*hexane_ane_text)(void* context, const char* text);
HEXANE_ANE_API bool hexane_ane_attributes(hexane_ane_program* program, uint32_t qos, hexane_ane_text text,
                                          void* context, hexane_ane_error* error);
HEXANE_ANE_API void hexane_ane_free(hexane_ane_program* program); /* unloads the program, whose requests then fail */

/* Ports of a loaded program: inputs, then outputs, each in the framework's order. */
HEXANE_ANE_API size_t hexane_ane_num_inputs(const hexane_ane_program* program);
HEXANE_ANE_API size_t hexane_ane_num_outputs(const hexane_ane_program* program);
HEXANE_ANE_API hexane_ane_port hexane_ane_port_at(const hexane_ane_program* program, size_t index);

/* Surfaces: one for each port, which the caller keeps until hexane_ane_unbind; NULL: the request makes surfaces, of one
 * size for all inputs and one size for all outputs. */
HEXANE_ANE_API hexane_ane_request* hexane_ane_bind(hexane_ane_program* program, void* const* surfaces,
                                                   hexane_ane_error* error);
/* Returns false if an evaluation has not come back: the engine may still write to the surfaces, which are never
 * freed. */
HEXANE_ANE_API bool hexane_ane_unbind(hexane_ane_request* request);
HEXANE_ANE_API bool hexane_ane_evaluate(hexane_ane_request* request, uint32_t qos, hexane_ane_error* error);

/* Copies a whole packed tensor of the port's dtype to or from the surface of a port. */
HEXANE_ANE_API bool hexane_ane_write(hexane_ane_request* request, size_t port, const void* data, size_t bytes,
                                     hexane_ane_error* error);
HEXANE_ANE_API bool hexane_ane_read(hexane_ane_request* request, size_t port, void* data, size_t bytes,
                                    hexane_ane_error* error);

#ifdef __cplusplus
}
#endif
