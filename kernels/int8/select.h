// Which int8 kernels run: the widest set that this machine has and that has proved itself against plain loops.
#pragma once
#include "int8/kernels.h"

namespace penstock {

// Every table of kernels for `wanted` that this machine's instructions can run, widest first; the baseline's is the last.
std::vector<const Int8Kernels*> int8_tables(Isa wanted);

// The kernels of `wanted`, or of the next narrower set if that one is not there (VNNI where the machine has it) or disagrees
// with the baseline on a few small cases. The cases run once for each set, at first use.
const Int8Kernels& int8_kernels(Isa wanted);

// Whether a set's kernels agree with the baseline's bit for bit.
bool int8_kernels_agree(const Int8Kernels& kernels);

// The first of `count` tables, widest first, that agrees; the last one is the baseline and needs no proof.
const Int8Kernels& first_that_agrees(const Int8Kernels* const* tables, int count);

}  // namespace penstock
