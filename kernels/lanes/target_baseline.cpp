// Kernels on maps of pixels for any machine.
#include <type_traits>
#include <utility>

#include "lanes/kernels.h"
#include "machine/targets.h"

#include "machine/target_baseline.h"
#include "lanes/table.inl"
#include "machine/target_end.h"
