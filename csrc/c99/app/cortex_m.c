/* Cortex-M without an operating system: the start of the program, and file access through ARM's semihosting: a
 * breakpoint asks the debugger or emulator for the operation in r0 with its arguments in r1. */
#include <stdint.h>
#include <string.h>

#include "port.h"

/* memcpy() of a C library takes about 500 bytes of code, since it is fast for long blocks. This memcpy() only copies
 * image rows or a few words. Cortex-M cores read words at any address. */
typedef struct word {
  uint32_t bits;
} __attribute__((packed, may_alias)) word;

/* The compiler must not turn the loop of memcpy() or memset() into a call of that function. */
#define KEEP_LOOP __attribute__((used, optimize("no-tree-loop-distribute-patterns")))

KEEP_LOOP void* memcpy(void* to, const void* from, size_t bytes) {
  uint8_t* out = (uint8_t*)to;
  const uint8_t* in = (const uint8_t*)from;
  for (; bytes >= 16; bytes -= 16, out += 16, in += 16) {
    word* four = (word*)(void*)out;
    const word* from_four = (const word*)(const void*)in;
    four[0] = from_four[0];
    four[1] = from_four[1];
    four[2] = from_four[2];
    four[3] = from_four[3];
  }
  for (; bytes >= 4; bytes -= 4, out += 4, in += 4) *(word*)(void*)out = *(const word*)(const void*)in;
  for (; bytes; --bytes) *out++ = *in++;
  return to;
}

KEEP_LOOP void* memset(void* to, int value, size_t bytes) {
  uint8_t* out = (uint8_t*)to;
  const word filled = {(uint8_t)value * 0x01010101u};
  for (; bytes >= 4; bytes -= 4, out += 4) *(word*)(void*)out = filled;
  for (; bytes; --bytes) *out++ = (uint8_t)value;
  return to;
}

extern uint32_t __stack_end[], __data_load[], __data_begin[], __data_end[], __bss_begin[], __bss_end[];
int main(void);
void reset(void);

enum { SYS_OPEN = 1, SYS_CLOSE = 2, SYS_WRITE0 = 4, SYS_WRITE = 5, SYS_READ = 6, SYS_EXIT_EXTENDED = 0x20 };

static int32_t call_host(int32_t operation, const void* arguments) {
  register int32_t r0 __asm__("r0") = operation;
  register const void* r1 __asm__("r1") = arguments;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

static int32_t in, out;

static int32_t open_file(const char* name, size_t length, uint32_t mode) {
  uintptr_t arguments[3];
  arguments[0] = (uintptr_t)name;
  arguments[1] = mode;
  arguments[2] = length;
  return call_host(SYS_OPEN, arguments);
}

/* Returns 0 if all bytes were moved: both operations return the number of bytes that were not moved. */
static int move(int32_t operation, int32_t file, uintptr_t at, size_t bytes) {
  uintptr_t arguments[3];
  arguments[0] = (uintptr_t)file;
  arguments[1] = at;
  arguments[2] = bytes;
  return call_host(operation, arguments) == 0;
}

int port_open(void) {
  in = open_file("input.bin", 9, 1);    /* rb */
  out = open_file("output.bin", 10, 5); /* wb */
  return in != -1 && out != -1;
}

int port_read(void* to, size_t bytes) { return move(SYS_READ, in, (uintptr_t)to, bytes); }
int port_write(const void* from, size_t bytes) { return move(SYS_WRITE, out, (uintptr_t)from, bytes); }

#if !defined(PORT_INPUT_IS_ELSEWHERE)
int port_input(unsigned input, long begin, long end, void* to, size_t bytes) {
  (void)input, (void)begin, (void)end;
  return port_read(to, bytes);
}
#endif

int port_output(unsigned output, long begin, long end, const void* from, size_t bytes) {
  (void)output, (void)begin, (void)end;
  return port_write(from, bytes);
}

void port_print(const char* text) { call_host(SYS_WRITE0, text); }

void port_exit(int status) {
  uintptr_t arguments[2], file[1];
  file[0] = (uintptr_t)out;
  call_host(SYS_CLOSE, file);
  arguments[0] = 0x20026; /* reason: application exit */
  arguments[1] = (uintptr_t)status;
  call_host(SYS_EXIT_EXTENDED, arguments);
  for (;;) {
  }
}

void reset(void) {
  volatile uint32_t* const access = (volatile uint32_t*)0xe000ed88; /* CPACR: coprocessors 10 and 11 are the FPU */
  *access |= 0xfu << 20;
  __asm__ volatile("dsb\n\tisb");
  memcpy(__data_begin, __data_load, (size_t)((uintptr_t)__data_end - (uintptr_t)__data_begin));
  memset(__bss_begin, 0, (size_t)((uintptr_t)__bss_end - (uintptr_t)__bss_begin));
  port_exit(main());
}

static void fault(void) {
  port_print("fault\n");
  port_exit(3);
}

typedef void (*handler)(void);
__attribute__((section(".vectors"), used)) static const handler kVectors[] = {
    (handler)(uintptr_t)__stack_end, reset, fault, fault, fault, fault, fault};
