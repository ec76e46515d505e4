// The rows of 'hexane doctor': the needed classes and selectors next to the framework's, and the framework's facts
// about the machine.
#include <cstdlib>
#include <cstring>

#import "device/ane.h"

using namespace hexane::ane;

namespace {

template <typename Result>
Result ask(Class info, Method method) {
  return reinterpret_cast<Result (*)(id, SEL)>(method_getImplementation(method))(info, method_getName(method));
}

// The method's result, by the first type of its encoding; nil for an unknown type.
NSString* answer(Class info, Method method) {
  switch (*method_getTypeEncoding(method)) {
    case 'B':
      return ask<bool>(info, method) ? @"yes" : @"no";
    case 'c':
    case 'C':
      return [NSString stringWithFormat:@"%d", ask<char>(info, method)];
    case 'i':
    case 'I':
      return [NSString stringWithFormat:@"%d", ask<int>(info, method)];
    case 'l':
    case 'L':
    case 'q':
    case 'Q':
      return [NSString stringWithFormat:@"%ld", ask<long>(info, method)];
    case '@':
      return [ask<id>(info, method) description];
    default:
      return nil;
  }
}

void probe(const hexane_ane_setup& setup, hexane_ane_line line, void* context) {
  for (const char* name : kClassNames) line(context, "class", name, find_class(setup, name) ? name : "", name);
  const auto show = [&](const AneSelector& selector) {
    const char* receiver = kClassNames[selector.receiver];
    Class found = find_class(setup, receiver);
    const Method method = found ? method_of(found, selector) : nullptr;
    NSString* name = [NSString stringWithFormat:@"%c[%s %s]", selector.of_class ? '+' : '-', receiver, selector.name];
    line(context, "selector", [name UTF8String], method ? method_getTypeEncoding(method) : "", selector.encoding);
  };
  for (const AneSelector& selector : kSelectors) show(selector);
  for (const AneSelector& selector : kKept) show(selector);
  Class info = find_class(setup, kDeviceInfo);
  for (const char* fact : kDeviceFacts) {
    const Method method = info ? class_getClassMethod(info, sel_registerName(fact)) : nullptr;
    NSString* says = method ? answer(info, method) : nil;
    if (says) line(context, "device", fact, [says UTF8String], "");
  }
}

void list_methods(Class type, char sign, const char* name, hexane_ane_line line, void* context) {
  unsigned int count = 0;
  Method* const methods = class_copyMethodList(type, &count);
  for (unsigned int i = 0; i < count; ++i) {
    NSString* text = [NSString stringWithFormat:@"%c[%s %s]", sign, name, sel_getName(method_getName(methods[i]))];
    const char* encoding = method_getTypeEncoding(methods[i]);
    line(context, "method", [text UTF8String], encoding ? encoding : "", "");
  }
  free(methods);
}

// Sends no message to a class: many classes of a process crash on a message.
void list_all_methods(hexane_ane_line line, void* context) {
  const int room = objc_getClassList(nullptr, 0);
  auto* const classes = static_cast<Class*>(calloc(static_cast<size_t>(room > 0 ? room : 1), sizeof(Class)));
  const int found = objc_getClassList(classes, room);
  for (int i = 0; i < (found < room ? found : room); ++i) {
    const char* name = class_getName(classes[i]);
    if (strncmp(name, "_ANE", 4) != 0) continue;
    list_methods(object_getClass((id)classes[i]), '+', name, line, context);
    list_methods(classes[i], '-', name, line, context);
  }
  free(classes);
}

}  // namespace

namespace hexane::ane {

NSString* attributes_text(id attributes) {
  if (!attributes) return @"";
  NSData* data = nil;
  if ([NSPropertyListSerialization propertyList:attributes isValidForFormat:NSPropertyListXMLFormat_v1_0])
    data = [NSPropertyListSerialization dataWithPropertyList:attributes
                                                      format:NSPropertyListXMLFormat_v1_0
                                                     options:0
                                                       error:nullptr];
  NSString* text = nil;
  if (data) text = [[[NSString alloc] initWithData:data encoding:NSUTF8StringEncoding] autorelease];
  return text ? text : [attributes description];
}

}  // namespace hexane::ane

bool hexane_ane_methods(const hexane_ane_setup* setup, hexane_ane_line line, void* context, hexane_ane_error* error) {
  return !refuse_fork(error) && open_framework(*setup, error) && guarded(error, "open", [&] {
    list_all_methods(line, context);
    return true;
  });
}

bool hexane_ane_probe(const hexane_ane_setup* setup, hexane_ane_line line, void* context, hexane_ane_error* error) {
  return !refuse_fork(error) && open_framework(*setup, error) && guarded(error, "open", [&] {
    probe(*setup, line, context);
    return true;
  });
}
