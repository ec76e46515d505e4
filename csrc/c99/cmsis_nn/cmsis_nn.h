/* Bodies that compute steps in TFLite's arithmetic by CMSIS-NN. The sources of CMSIS-NN are not included. */
#ifndef HEXANE_CMSIS_NN_H_
#define HEXANE_CMSIS_NN_H_

#include "../include/hexane.h"

extern const hx_body hx_cmsis_nn_add, hx_cmsis_nn_avg_pool, hx_cmsis_nn_conv, hx_cmsis_nn_matmul, hx_cmsis_nn_max_pool;

#endif
