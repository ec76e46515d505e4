// The folder that the engine's compiler reads a program from: model.mil and the weight files, in the temporary folder
// under the program's identifier, which is a hash of both.
//
// Whoever uses it holds a shared lock on the folder itself, which the system lets go of when a process ends in whatever
// way. Who gets the lock alone may remove the folder: the last user, or a later process, which knows it by a marker.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#import "device/ane.h"

namespace hexane::ane {
namespace {

NSString* const kPrefix = @"@model_path/";
NSString* const kMarker = @".hexane";

struct Folder {
  NSString* path;
  int descriptor;
  int users;
};

// Of this process. Nothing that may raise is called while `listing` is held, as it would stay held.
std::mutex listing;
std::vector<Folder>& folders() {
  static auto* all = new std::vector<Folder>;  // alive until the last exit handler has run
  return *all;
}

Folder* find(NSString* path) {
  for (Folder& folder : folders())
    if ([folder.path isEqualToString:path]) return &folder;
  return nullptr;
}

// A descriptor that holds the shared lock, or -1. Another process may remove the folder before we have the lock: then
// it is made again.
int make_and_lock(const char* path) {
  for (;;) {
    if (mkdir(path, 0755) != 0 && errno != EEXIST) return -1;
    const int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0 && errno == ENOENT) continue;
    if (descriptor < 0) return -1;
    struct stat held, there;
    if (flock(descriptor, LOCK_SH) == 0 && fstat(descriptor, &held) == 0 && lstat(path, &there) == 0 &&
        held.st_ino == there.st_ino && held.st_dev == there.st_dev)
      return descriptor;
    close(descriptor);
  }
}

void remove_if_alone(const Folder& folder) {
  if (flock(folder.descriptor, LOCK_EX | LOCK_NB) == 0)
    [[NSFileManager defaultManager] removeItemAtPath:folder.path error:NULL];
  close(folder.descriptor);
}

void remove_all() {
  hexane_ane_error ignored;
  if (refuse_fork(&ignored)) return;
  guarded(&ignored, "files", [] {
    for (const Folder& folder : folders()) remove_if_alone(folder);
    return true;
  });
}

bool use_again(NSString* path) {
  const std::lock_guard lock(listing);
  Folder* known = find(path);
  if (known) ++known->users;
  return known;
}

void add(const Folder& folder) {
  static const int registered = atexit(remove_all);
  (void)registered;
  const std::lock_guard lock(listing);
  folders().push_back(folder);
}

// The folder as it is then; without users it is no longer in the list.
Folder remove_user(NSString* path) {
  const std::lock_guard lock(listing);
  Folder* folder = find(path);
  --folder->users;
  const Folder left = *folder;
  if (!left.users) folders().erase(folders().begin() + (folder - folders().data()));
  return left;
}

bool write(NSData* data, NSString* path, hexane_ane_error* error) {
  NSError* failure = nil;
  NSString* parent = [path stringByDeletingLastPathComponent];
  return ([[NSFileManager defaultManager] createDirectoryAtPath:parent
                                    withIntermediateDirectories:YES
                                                     attributes:nil
                                                          error:&failure] &&
          [data writeToFile:path options:NSDataWritingAtomic error:&failure]) ||
         fail(error, "files", failure);
}

bool write_all(NSString* folder, NSData* text, NSDictionary* weights, hexane_ane_error* error) {
  if (!write([NSData data], [folder stringByAppendingPathComponent:kMarker], error)) return false;
  if (!write(text, [folder stringByAppendingPathComponent:@"model.mil"], error)) return false;
  for (NSString* path in weights) {
    NSString* name = [path substringFromIndex:[kPrefix length]];
    NSData* data = [[weights objectForKey:path] objectForKey:@"data"];
    if (!write(data, [folder stringByAppendingPathComponent:name], error)) return false;
  }
  return true;
}

// The name as a path inside the folder, or nil and the error for one that leads out of it or begins with a name that is
// taken.
NSString* inner_path(const char* name, NSArray* taken, hexane_ane_error* error) {
  NSString* path = [NSString stringWithUTF8String:name];
  NSArray* parts = path ? [path componentsSeparatedByString:@"/"] : @[ @"" ];
  for (NSString* part in parts)
    if ([part length] == 0 || [part isEqualToString:@"."] || [part isEqualToString:@".."]) {
      fail(error, "files", "got the file '%s', need a relative path without '.' and '..'", name);
      return nil;
    }
  if ([taken containsObject:[parts objectAtIndex:0]]) {
    fail(error, "files", "got the file '%s', which is the name of another file there", name);
    return nil;
  }
  return path;
}

}  // namespace

NSString* blob_path(const char* name, hexane_ane_error* error) {
  NSString* path = inner_path(name, @[ @"model.mil", @"net.plist", @"data", kMarker ], error);
  return path ? [kPrefix stringByAppendingString:path] : nil;
}

bool put_made(NSString* folder, const hexane_ane_file& file, hexane_ane_error* error) {
  NSString* path = inner_path(file.name, @[ @"model.mil", kMarker ], error);
  return path &&
         write([NSData dataWithBytes:file.data length:file.bytes], [folder stringByAppendingPathComponent:path], error);
}

void sweep_folders() {
  NSFileManager* files = [NSFileManager defaultManager];
  for (NSString* name in [files contentsOfDirectoryAtPath:NSTemporaryDirectory() error:NULL]) {
    NSString* path = [NSTemporaryDirectory() stringByAppendingPathComponent:name];
    if (![files fileExistsAtPath:[path stringByAppendingPathComponent:kMarker]]) continue;
    const int descriptor = open([path fileSystemRepresentation], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor >= 0) remove_if_alone({.path = path, .descriptor = descriptor, .users = 0});
  }
}

NSString* enter_folder(NSString* identifier, NSData* text, NSDictionary* weights, hexane_ane_error* error) {
  NSString* path = [NSTemporaryDirectory() stringByAppendingPathComponent:identifier];
  if (use_again(path)) return path;
  const int descriptor = make_and_lock([path fileSystemRepresentation]);
  if (descriptor < 0) {
    fail(error, "files", "the folder %s cannot be made: %s", [path UTF8String], strerror(errno));
    return nil;
  }
  add({.path = [path retain], .descriptor = descriptor, .users = 1});
  if (write_all(path, text, weights, error)) return path;
  leave_folder(path);
  return nil;
}

void leave_folder(NSString* path) {
  const Folder left = remove_user(path);
  if (left.users) return;
  remove_if_alone(left);
  [left.path release];
}

}  // namespace hexane::ane
