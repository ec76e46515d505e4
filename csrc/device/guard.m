#include "device/guard.h"

#import <Foundation/Foundation.h>
#include <stdio.h>

bool hexane_guard(void (*body)(void*), void* context, char* text, size_t text_bytes) {
  @autoreleasepool {
    @try {
      body(context);
      return true;
    } @catch (NSException* exception) {
      snprintf(text, text_bytes, "%s: %s", [[exception name] UTF8String], [[exception reason] UTF8String]);
    } @catch (id other) {
      snprintf(text, text_bytes, "an exception of another kind: %s", [[other description] UTF8String]);
    }
  }
  return false;
}
