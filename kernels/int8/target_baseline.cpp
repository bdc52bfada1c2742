// The int8 kernels for any machine.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "int8/kernels.h"
#include "machine/targets.h"

#include "machine/no_contraction.h"
#define PENSTOCK_ISA int8_baseline
#include "machine/target_baseline.h"
#include "int8/table.inl"
#include "machine/target_end.h"

namespace penstock {
const Int8Kernels& int8_kernels_baseline() { return int8_baseline::kTable; }
}  // namespace penstock
