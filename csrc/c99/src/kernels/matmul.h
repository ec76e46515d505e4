/* The axes of a matrix product, [.., M, K] x [.., K, N] -> [.., M, N] with NumPy broadcasting of the leading axes. */
#ifndef HEXANE_MATMUL_H_
#define HEXANE_MATMUL_H_

#include "../internal.h"

typedef struct hx_matmul {
  int32_t m, n, k;
  int32_t m_step_x, k_step_x, k_step_y, n_step_y, m_step_out; /* bytes */
  int32_t item_out;
  int32_t matrices; /* matrices of the output */
  const hx_call* call;
  hx_view views[3]; /* x, y, output */
} hx_matmul;

/* A walk over the matrices, one for each index of the leading axes. */
typedef struct hx_rows {
  int32_t index;
  const uint8_t *x, *y;
  uint8_t* out;
} hx_rows;

hx_status hx_check_matmul(const hx_call* call, int transpose_x, int transpose_y);
/* Moves to the first matrices; returns 0 if there is nothing to compute. */
int hx_begin_matmul(const hx_call* call, int transpose_x, int transpose_y, hx_matmul* m, hx_rows* walk);
/* Moves to the next matrices. After the last matrices, returns 0 and moves back to the first. */
int hx_next_matrix(const hx_matmul* m, hx_rows* walk);
void hx_matmul_extras(const hx_matmul* m, const hx_rows* walk, const hx_epilogue* epilogue, int32_t row, int32_t n,
                      const uint8_t** at);

#endif
