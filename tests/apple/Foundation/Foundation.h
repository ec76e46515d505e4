// The declarations of Apple's Foundation that this project uses.
#pragma once

#include <CoreFoundation/CoreFoundation.h>
#include <objc/NSObject.h>
#include <stddef.h>
#include <stdint.h>

@class NSArray, NSData, NSDictionary, NSError, NSNumber;

typedef unsigned long NSStringEncoding;
typedef unsigned long NSDataWritingOptions;
enum { NSUTF8StringEncoding = 4 };
typedef NSUInteger NSPropertyListFormat;
typedef NSUInteger NSPropertyListWriteOptions;
enum { NSPropertyListXMLFormat_v1_0 = 100 };
enum { NSDataWritingAtomic = 1 };

typedef struct {
  unsigned long state;
  id *itemsPtr;
  unsigned long *mutationsPtr;
  unsigned long extra[5];
} NSFastEnumerationState;

@protocol NSFastEnumeration
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState *)state
                                  objects:(id *)buffer
                                    count:(NSUInteger)count;
@end

@protocol NSCopying
@end

@interface NSString : NSObject <NSCopying>
+ (instancetype)stringWithUTF8String:(const char *)text;
+ (instancetype)stringWithFormat:(NSString *)format, ...;
- (instancetype)initWithData:(NSData *)data encoding:(NSStringEncoding)encoding;
- (const char *)UTF8String;
- (const char *)fileSystemRepresentation;
- (NSUInteger)length;
- (BOOL)isEqualToString:(NSString *)other;
- (BOOL)hasSuffix:(NSString *)suffix;
- (NSString *)substringFromIndex:(NSUInteger)index;
- (NSString *)substringToIndex:(NSUInteger)index;
- (NSString *)stringByAppendingString:(NSString *)text;
- (NSString *)stringByAppendingPathComponent:(NSString *)part;
- (NSString *)stringByDeletingLastPathComponent;
- (NSArray *)componentsSeparatedByString:(NSString *)separator;
@end

@interface NSNumber : NSObject <NSCopying>
+ (NSNumber *)numberWithInt:(int)value;
+ (NSNumber *)numberWithUnsignedLongLong:(unsigned long long)value;
- (NSUInteger)unsignedIntegerValue;
+ (NSNumber *)numberWithLongLong:(long long)value;
- (unsigned long long)unsignedLongLongValue;
- (long long)longLongValue;
@end

@interface NSData : NSObject
+ (instancetype)data;
+ (instancetype)dataWithBytes:(const void *)bytes length:(NSUInteger)length;
- (const void *)bytes;
- (NSUInteger)length;
- (BOOL)writeToFile:(NSString *)path options:(NSDataWritingOptions)options error:(NSError **)error;
@end

@interface NSMutableData : NSData
- (void)appendBytes:(const void *)bytes length:(NSUInteger)length;
@end

@interface NSArray : NSObject <NSFastEnumeration>
+ (instancetype)array;
+ (instancetype)arrayWithObjects:(const id *)objects count:(NSUInteger)count;
- (NSUInteger)count;
- (id)objectAtIndex:(NSUInteger)index;
- (BOOL)containsObject:(id)object;
- (BOOL)isEqualToArray:(NSArray *)other;
@end

@interface NSMutableArray : NSArray
- (void)addObject:(id)object;
@end

@interface NSDictionary : NSObject <NSFastEnumeration>
+ (instancetype)dictionary;
+ (instancetype)dictionaryWithObject:(id)object forKey:(id)key;
+ (instancetype)dictionaryWithObjects:(const id *)objects forKeys:(const id *)keys count:(NSUInteger)count;
- (id)objectForKey:(id)key;
- (NSUInteger)count;
@end

@interface NSMutableDictionary : NSDictionary
- (void)setObject:(id)object forKey:(id)key;
@end

extern NSString *const NSUnderlyingErrorKey;

@interface NSError : NSObject
- (NSString *)domain;
- (NSInteger)code;
- (NSString *)localizedDescription;
- (NSDictionary *)userInfo;
@end

@interface NSException : NSObject
+ (void)raise:(NSString *)name format:(NSString *)format, ... __attribute__((noreturn));
- (NSString *)name;
- (NSString *)reason;
@end

@interface NSURL : NSObject
+ (NSURL *)fileURLWithPath:(NSString *)path;
- (NSString *)path;
@end

@interface NSPropertyListSerialization : NSObject
+ (BOOL)propertyList:(id)list isValidForFormat:(NSPropertyListFormat)format;
+ (NSData *)dataWithPropertyList:(id)list
                          format:(NSPropertyListFormat)format
                         options:(NSPropertyListWriteOptions)options
                           error:(NSError **)error;
@end

@interface NSFileManager : NSObject
+ (NSFileManager *)defaultManager;
- (BOOL)createDirectoryAtPath:(NSString *)path
    withIntermediateDirectories:(BOOL)intermediate
                     attributes:(NSDictionary *)attributes
                          error:(NSError **)error;
- (NSArray *)contentsOfDirectoryAtPath:(NSString *)path error:(NSError **)error;
- (BOOL)fileExistsAtPath:(NSString *)path;
- (BOOL)removeItemAtPath:(NSString *)path error:(NSError **)error;
@end

#ifdef __cplusplus
extern "C" {
#endif
NSString *NSTemporaryDirectory(void);
#ifdef __cplusplus
}
#endif
