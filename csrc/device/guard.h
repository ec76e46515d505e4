/* guarded(), the one function that catches Objective-C exceptions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Calls body(context) inside an autorelease pool. Returns false if `body` raised an exception: `text` then has the
 * exception's name and reason. An exception runs no destructors in `body`, so `body` must own nothing that needs a
 * destructor. */
bool hexane_guard(void (*body)(void*), void* context, char* text, size_t text_bytes);

#ifdef __cplusplus
}
#endif
