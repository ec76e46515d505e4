/* What the app needs of the place it runs on: bytes in, bytes out, an end. */
#ifndef HEXANE_PORT_H_
#define HEXANE_PORT_H_

#include <stddef.h>

/* Inputs come from one file, in order, one behind the other; outputs go to another in the same way. Each gives 0 if
 * not all bytes could be moved. */
int port_open(void);
int port_read(void* to, size_t bytes);
int port_write(const void* from, size_t bytes);
void port_print(const char* text);
void port_exit(int status);

#endif
