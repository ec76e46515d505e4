/* guarded(), the one function that catches Objective-C exceptions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls body(context) inside an autorelease pool. False if it raised: `text` then has the name and the reason.
 * Frames of `body` are left without their destructors being run, so it owns nothing that needs one. */
bool hexane_guard(void (*body)(void*), void* context, char* text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
