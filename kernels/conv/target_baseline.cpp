// Convolution kernels for any machine.
#include <type_traits>
#include <utility>

#include "conv/kernels.h"
#include "machine/targets.h"

#include "machine/target_baseline.h"
#include "conv/table.inl"
#include "machine/target_end.h"
