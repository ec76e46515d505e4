// Checks that prepare() functions share: plan files are untrusted, so shapes and strides are, too.
#pragma once

#include <string>

#include "cpu/kernel.h"

namespace hexane::cpu {

// "(2, 3)"
std::string shape_text(const Tensor& tensor);

// Throws Error unless the operand has whole-byte elements, no negative extent or stride, and rows to be a ring of.
void check_operand(const char* kernel, const char* operand, const Tensor& tensor);

// Also that the elements follow each other without gaps, in order.
void check_dense(const char* kernel, const char* operand, const Tensor& tensor);

// Like check_operand, and also checks that no two elements share bytes. Then every element has one writer, and size()
// cannot overflow.
void check_written(const char* kernel, const char* operand, const Tensor& tensor);

// Throws Error unless channels, the last axis, are dense and all strides whole elements.
void check_image(const char* kernel, const char* operand, const Tensor& image);

// The bytes of one element, 1, 2, 4 or 8.
inline int64_t item_bytes(const Tensor& tensor) { return info(tensor.dtype).bits / 8; }

// Throws Error unless both have the same rank and extents.
void check_same_shape(const char* kernel, const Tensor& got, const Tensor& need);

// An axis attribute, counted from the end if negative; throws Error if it is not one of `rank` axes.
int check_axis(const char* kernel, int64_t axis, int rank);

// Throws Error unless the list has between 0 and 8 values.
void check_list(const char* kernel, const char* attribute, const IntList& list);

// The bits of a number attribute as an element of `dtype`; throws Error if that cannot hold it.
uint64_t scalar_bits(const char* kernel, DType dtype, double value);

// Cuts along every axis that is longer than one, the outermost first; pieces of the innermost are whole cache lines.
void cut_lines(const Call& call, Cuts& cuts);

}  // namespace hexane::cpu
