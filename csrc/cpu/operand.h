// Checks that prepare() functions share: plan files are untrusted, so their shapes and strides are untrusted.
#pragma once

#include <string>

#include "cpu/kernel.h"

namespace hexane::cpu {

// "(2, 3)"
std::string shape_text(const Tensor& tensor);

// Throws Error unless the operand has whole-byte elements and no negative extent or stride, and a ring has an axis of
// rows.
void check_operand(const char* kernel, const char* operand, const Tensor& tensor);

// Like check_operand(), and also checks that elements are in row-major order without gaps.
void check_dense(const char* kernel, const char* operand, const Tensor& tensor);

// Like check_operand, and also checks that no two elements share bytes. After this check every element has one writer,
// and size() cannot overflow.
void check_written(const char* kernel, const char* operand, const Tensor& tensor);

// Throws Error unless the last axis (channels) is dense and all strides are multiples of an element.
void check_image(const char* kernel, const char* operand, const Tensor& image);

// Returns the bytes of one element: 1, 2, 4 or 8.
inline int64_t item_bytes(const Tensor& tensor) { return info(tensor.dtype).bits / 8; }

// Throws Error unless both tensors have the same rank and extents.
void check_same_shape(const char* kernel, const Tensor& got, const Tensor& need);

// Returns an axis attribute as an index from 0; a negative axis counts from the end. Throws Error if the axis is
// outside of `rank` axes.
int check_axis(const char* kernel, int64_t axis, int rank);

// Throws Error unless the list has between 0 and 8 values.
void check_list(const char* kernel, const char* attribute, const IntList& list);

// Returns the bits of a number attribute as an element of `dtype`; throws Error if `dtype` cannot hold the value.
uint64_t scalar_bits(const char* kernel, DType dtype, double value);

// Lists every axis longer than one, outermost first. Pieces of the innermost axis are whole cache lines.
void cut_lines(const Call& call, Cuts& cuts);

}  // namespace hexane::cpu
