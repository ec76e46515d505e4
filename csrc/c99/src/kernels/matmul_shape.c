#include "matmul.h"

hx_status hx_check_matmul(const hx_call* call, int transpose_x, int transpose_y) {
  hx_view v[3];
  const hx_view *x = &v[0], *y = &v[1], *out = &v[2];
  if (!hx_views(call, 2, v)) return hx_refuse(call, "need x and y");
  if (x->rank < 2 || y->rank < 2 || out->rank != hx_max(x->rank, y->rank))
    return hx_refuse(call, "ranks: need 2 to 8, and the larger for the output");
  if (!hx_is_dense_inside(x) || !hx_is_dense_inside(out)) return hx_refuse(call, "need dense innermost axes");
  if (x->shape[x->rank - (transpose_x ? 1 : 2)] != out->shape[out->rank - 2] ||
      x->shape[x->rank - (transpose_x ? 2 : 1)] != y->shape[y->rank - (transpose_y ? 1 : 2)] ||
      y->shape[y->rank - (transpose_y ? 2 : 1)] != out->shape[out->rank - 1])
    return hx_refuse(call, "shapes: need M x K and K x N for M x N");
  v[0].rank -= 2;
  v[1].rank -= 2;
  v[2].rank -= 2;
  return hx_broadcasts(x, out) && hx_broadcasts(y, out)
             ? HX_OK
             : hx_refuse(call, "leading axes: need 1 or the output's extent");
}

/* Returns the matrix of an operand for matrix i of the output. */
static uint8_t* matrix_at(const hx_view* view, const hx_view* out, int32_t i) {
  uint8_t* at = view->data;
  int axis = out->rank - 3, own = view->rank - 3;
  for (; own >= 0; --axis, --own) { /* the stride of an axis of extent 1 is 0 */
    at += (size_t)(i % out->shape[axis]) * (size_t)view->strides[own];
    i /= out->shape[axis];
  }
  return at;
}

int hx_begin_matmul(const hx_call* call, int transpose_x, int transpose_y, hx_matmul* m, hx_rows* walk) {
  const hx_view *x = &m->views[0], *y = &m->views[1], *out = &m->views[2];
  int32_t size;
  hx_views(call, 2, m->views);
  m->call = call;
  m->m = out->shape[out->rank - 2];
  m->n = out->shape[out->rank - 1];
  m->k = x->shape[x->rank - (transpose_x ? 2 : 1)];
  m->k_step_x = x->strides[x->rank - (transpose_x ? 2 : 1)];
  m->m_step_x = x->strides[x->rank - (transpose_x ? 1 : 2)];
  m->k_step_y = y->strides[y->rank - (transpose_y ? 1 : 2)];
  m->n_step_y = y->strides[y->rank - (transpose_y ? 2 : 1)];
  m->m_step_out = out->strides[out->rank - 2];
  m->item_out = out->item;
  size = hx_size(out);
  if (size == 0) return 0;
  m->matrices = size / m->m / m->n;
  walk->index = -1;
  hx_next_matrix(m, walk);
  return 1;
}

int hx_next_matrix(const hx_matmul* m, hx_rows* walk) {
  const hx_view* out = &m->views[2];
  if (++walk->index == m->matrices) walk->index = 0;
  walk->x = matrix_at(&m->views[0], out, walk->index);
  walk->y = matrix_at(&m->views[1], out, walk->index);
  walk->out = matrix_at(out, out, walk->index);
  return walk->index > 0;
}

void hx_matmul_extras(const hx_matmul* m, const hx_rows* walk, const hx_epilogue* epilogue, int32_t row, int32_t n,
                      const uint8_t** at) {
  hx_view extra;
  int i;
  for (i = 0; i < epilogue->count; ++i) {
    if (epilogue->slots[i].kind != HX_SLOT_ADD) continue;
    hx_input(m->call, epilogue->slots[i].operand, &extra);
    at[i] = matrix_at(&extra, &m->views[2], walk->index) + (size_t)row * (size_t)extra.strides[extra.rank - 2] +
            (size_t)n * (size_t)extra.item;
  }
}
