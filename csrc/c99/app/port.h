/* The app's needs from its platform: bytes in, bytes out, an end. */
#ifndef HEXANE_PORT_H_
#define HEXANE_PORT_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Inputs come from one file, one after another; outputs go to another file in the same way. Streamed inputs come after
 * the others, and streamed outputs before them, in the order in which a run moves their rows. Each gives 0 if not all
 * bytes
 * could be moved. */
int port_open(void);
int port_read(void* to, size_t bytes);
int port_write(const void* from, size_t bytes);
/* The source of a streamed input: writes its rows [begin, end) to `to`, `bytes` in all, without gaps. A run asks for
 * each row once, in order, when the network needs it. Wait here for a line of a camera or a frame of a microphone. The
 * functions here read input.bin; `make INPUT=FILE.c` takes your driver's. */
int port_input(unsigned input, long begin, long end, void* to, size_t bytes);

/* Takes rows [begin, end) of a streamed output in the same way; they are at `from` until this returns. */
int port_output(unsigned output, long begin, long end, const void* from, size_t bytes);

void port_print(const char* text);
void port_exit(int status);

#ifdef __cplusplus
}
#endif

#endif
