/* The host: files input.bin and output.bin in the working directory. */
#include <stdio.h>
#include <stdlib.h>

#include "port.h"

static FILE *in, *out;

int port_open(void) {
  in = fopen("input.bin", "rb");
  out = fopen("output.bin", "wb");
  return in && out;
}

int port_read(void* to, size_t bytes) { return fread(to, 1, bytes, in) == bytes; }
int port_write(const void* from, size_t bytes) { return fwrite(from, 1, bytes, out) == bytes; }

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

void port_print(const char* text) { fputs(text, stderr); }
void port_exit(int status) { exit(status == 0 && fclose(out) != 0 ? 1 : status); }
