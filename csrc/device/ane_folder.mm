// The files that the engine's compiler reads a program from: model.mil and the weights. They are in a folder of the
// temporary folder. Its name is the program's identifier, a hash of the text and the weights. The framework deletes
// that folder when it unloads a program, even if another program of the same text and weights needs it. So files are
// written again before any call that may read them. Hexane puts no other file into the folder, because newer systems
// hash it.
//
//   <identifier>/         the folder, of all programs of this text and these weights, in whatever process
//   <identifier>.hexane   locked shared by each process with one of these programs; a sole holder may remove the folder
//   <identifier>.turn     locked exclusively during a call that writes, reads or deletes the folder
//
// The system releases a process's locks on these files when the process ends, even by a crash. A later process removes
// the files that a crash leaves.
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
NSString* const kTurn = @".turn";

struct Folder {
  NSString* path;
  int descriptor;
  int users;
};

// The folders of this process. No call that may raise runs while `listing` is held, because an exception would leave
// it held.
std::mutex listing;
std::vector<Folder>& folders() {
  static auto* all = new std::vector<Folder>;  // never freed: exit handlers may still use the list
  return *all;
}

Folder* find(NSString* path) {
  for (Folder& folder : folders())
    if ([folder.path isEqualToString:path]) return &folder;
  return nullptr;
}

NSString* marker_of(NSString* path) { return [path stringByAppendingString:kMarker]; }
NSString* turn_of(NSString* path) { return [path stringByAppendingString:kTurn]; }

// A descriptor that holds the lock (LOCK_SH or LOCK_EX) on a file, or -1. If another process removes the file before
// this process has the lock, the file is created again.
int make_and_lock(NSString* path, int lock) {
  const char* name = [path fileSystemRepresentation];
  for (;;) {
    const int descriptor = open(name, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (descriptor < 0) return -1;
    int locked;
    while ((locked = flock(descriptor, lock)) != 0 && errno == EINTR) continue;
    struct stat held, there;
    if (locked == 0 && fstat(descriptor, &held) == 0 && lstat(name, &there) == 0 && held.st_ino == there.st_ino &&
        held.st_dev == there.st_dev)
      return descriptor;
    const int failure = errno;
    close(descriptor);
    if (locked != 0 && failure != EWOULDBLOCK) return -1;
  }
}

// Removes the folder and its marker, unless other processes hold the marker.
void remove_if_alone(const Folder& folder) {
  if (flock(folder.descriptor, LOCK_EX | LOCK_NB) == 0) {
    [[NSFileManager defaultManager] removeItemAtPath:folder.path error:NULL];
    unlink([marker_of(folder.path) fileSystemRepresentation]);
  }
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

// Returns the folder after the removal; a folder without users is no longer in the list.
Folder remove_user(NSString* path) {
  const std::lock_guard lock(listing);
  Folder* folder = find(path);
  --folder->users;
  const Folder left = *folder;
  if (!left.users) folders().erase(folders().begin() + (folder - folders().data()));
  return left;
}

// Writes the file, unless a file of its size exists: the name of the folder is a hash of the contents.
bool put(NSData* data, NSString* path, hexane_ane_error* error) {
  struct stat there;
  if (lstat([path fileSystemRepresentation], &there) == 0 && S_ISREG(there.st_mode) &&
      static_cast<NSUInteger>(there.st_size) == [data length])
    return true;
  NSError* failure = nil;
  NSString* parent = [path stringByDeletingLastPathComponent];
  return ([[NSFileManager defaultManager] createDirectoryAtPath:parent
                                    withIntermediateDirectories:YES
                                                     attributes:nil
                                                          error:&failure] &&
          [data writeToFile:path options:NSDataWritingAtomic error:&failure]) ||
         fail(error, "files", failure);
}

}  // namespace

NSString* blob_path(const char* name, hexane_ane_error* error) {
  NSString* path = [NSString stringWithUTF8String:name];
  NSArray* parts = path ? [path componentsSeparatedByString:@"/"] : @[ @"" ];
  for (NSString* part in parts)
    if ([part length] == 0 || [part isEqualToString:@"."] || [part isEqualToString:@".."]) {
      fail(error, "files", "got the file '%s', need a relative path without '.' and '..'", name);
      return nil;
    }
  if ([@[ @"model.mil", @"net.plist", @"data" ] containsObject:[parts objectAtIndex:0]]) {
    fail(error, "files", "got the file '%s', which is the name of another file there", name);
    return nil;
  }
  return [kPrefix stringByAppendingString:path];
}

void sweep_folders() {
  NSFileManager* files = [NSFileManager defaultManager];
  for (NSString* name in [files contentsOfDirectoryAtPath:NSTemporaryDirectory() error:NULL]) {
    NSString* path = [NSTemporaryDirectory() stringByAppendingPathComponent:name];
    const bool is_marker = [name hasSuffix:kMarker] && [name length] > [kMarker length];
    if (!is_marker && !([name hasSuffix:kTurn] && [name length] > [kTurn length])) continue;
    const int descriptor = open([path fileSystemRepresentation], O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) continue;
    if (is_marker) {
      NSString* folder = [path substringToIndex:[path length] - [kMarker length]];
      remove_if_alone({.path = folder, .descriptor = descriptor, .users = 0});
      continue;
    }
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) unlink([path fileSystemRepresentation]);
    close(descriptor);
  }
}

NSString* enter_folder(NSString* identifier, hexane_ane_error* error) {
  NSString* path = [NSTemporaryDirectory() stringByAppendingPathComponent:identifier];
  if (use_again(path)) return path;
  const int descriptor = make_and_lock(marker_of(path), LOCK_SH);
  if (descriptor < 0) {
    fail(error, "files", "%s cannot be made: %s", [marker_of(path) UTF8String], strerror(errno));
    return nil;
  }
  add({.path = [path retain], .descriptor = descriptor, .users = 1});
  return path;
}

void leave_folder(NSString* path) {
  const Folder left = remove_user(path);
  if (left.users) return;
  remove_if_alone(left);
  [left.path release];
}

bool put_files(NSString* folder, NSData* text, NSDictionary* weights, hexane_ane_error* error) {
  if (!put(text, [folder stringByAppendingPathComponent:@"model.mil"], error)) return false;
  for (NSString* path in weights) {
    NSString* name = [path substringFromIndex:[kPrefix length]];
    NSData* data = [[weights objectForKey:path] objectForKey:@"data"];
    if (!put(data, [folder stringByAppendingPathComponent:name], error)) return false;
  }
  return true;
}

Turn::Turn(NSString* folder) {
  hexane_ane_error ignored;
  guarded(&ignored, "files", [&] {
    path_ = [turn_of(folder) retain];
    descriptor_ = make_and_lock(path_, LOCK_EX);
    return true;
  });
}

Turn::~Turn() {
  hexane_ane_error ignored;
  guarded(&ignored, "files", [&] {
    if (descriptor_ >= 0) unlink([path_ fileSystemRepresentation]);
    [path_ release];
    return true;
  });
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace hexane::ane
