/* The functions of a platform that the app needs: read bytes, write bytes, print, exit. */
#ifndef HEXANE_PORT_H_
#define HEXANE_PORT_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Inputs come from one file, one after another; outputs go to another file, one after another. Streamed inputs follow
 * the other inputs in the file. Streamed outputs precede the other outputs. Rows of streamed ports are in the order in
 * which a run moves them. Each port function returns 0 if it could not move all bytes. */
int port_open(void);
int port_read(void* to, size_t bytes);
int port_write(const void* from, size_t bytes);
/* The source of a streamed input: writes its rows [begin, end) to `to`, `bytes` bytes, without gaps. A run asks for
 * each row once, in order, when the network needs it. Your function waits for a line of a camera or a frame of a
 * microphone. The functions of this folder read input.bin; `make INPUT=FILE.c` uses the function of your driver. */
int port_input(unsigned input, long begin, long end, void* to, size_t bytes);

/* Consumes rows [begin, end) of a streamed output. `from` is valid until this function returns. */
int port_output(unsigned output, long begin, long end, const void* from, size_t bytes);

void port_print(const char* text);
void port_exit(int status);

#ifdef __cplusplus
}
#endif

#endif
