// What tests tell the stand-in of the private framework, which is otherwise used as the framework is.
#pragma once

#include "device/hexane_ane.h"

#ifdef __cplusplus
extern "C" {
#endif

// Called once by each compile, with the folder that has model.mil and its weights. It answers by fake_ane_accept with
// the bytes of a plan (.hxp) that computes what the text says, or by fake_ane_refuse with the reason.
typedef struct fake_ane_reply fake_ane_reply;
typedef void (*fake_ane_lower)(void* context, const char* folder, fake_ane_reply* reply);
HEXANE_ANE_API void fake_ane_set_lower(fake_ane_lower lower, void* context);
HEXANE_ANE_API void fake_ane_accept(fake_ane_reply* reply, const void* plan, size_t bytes);
HEXANE_ANE_API void fake_ane_refuse(fake_ane_reply* reply, const char* reason);

// "compile_limit": compiles before they fail without a word. "fail_loads": so many loads fail, with "fail_code" if that
// is not 0. "raise": the next so many evaluations raise an exception. "idle": evaluations compute nothing. "stall_ms":
// every call takes so much longer. "no_engine": the machine has none. "unnamed": live lists come without Name.
// "float_type": live lists have a type nobody knows.
//
// "equal_surfaces": an evaluation refuses inputs whose surfaces are not of one size, and outputs. "refuse_map": the
// framework maps no surfaces. "hang_compile_ms", "hang_load_ms", "hang_evaluate_ms", "hang_unload_ms": these calls
// alone take so much longer.
//
// How the framework treats files and compiled programs. Each of these is 1 unless a test says otherwise, and no sources
// but a decompilation of another system tell which is true on a Mac:
// "unload_deletes": an unload deletes the folder. "writes_files": compile writes the text and the weights before it
// reads them; else they have to be there. "load_compiles": a load compiles where the service has no program; else it
// fails. "says_exists": compiledModelExists tells the truth; else it says no. "compile_again": a compile compiles
// what the service keeps, too; else it takes the kept program. "hash_bundle": a compile refuses other
// files in the folder, and several weight files. "identity", 0: the signer, whose programs alone the service loads.
// It keeps them in the folder that the environment calls FAKE_ANED. "constexpr_attributes": text with arguments of
// constexpr_affine_dequantize in round brackets is an InvalidMILProgram. "grammar": so is text that a reader of its own
// (grammar.cpp) refuses. "error_chain": the compiler's reason is an error within errors. False for another name.
HEXANE_ANE_API bool fake_ane_set(const char* name, int64_t value);

// Whether MIL text is accepted by the grammar alone; `why` names the place if not.
HEXANE_ANE_API bool fake_ane_check_text(const char* mil, size_t mil_bytes, char* why, size_t why_bytes);

// Shared memory in place of IOSurfaces.
HEXANE_ANE_API const hexane_ane_surfaces* fake_ane_surfaces(void);

#ifdef __cplusplus
}
#endif
