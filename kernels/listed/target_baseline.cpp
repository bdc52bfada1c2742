// Convolution at listed pixels for any machine.
#include "machine/targets.h"
#include "listed/kernels.h"

#include "machine/target_baseline.h"
#include "listed/table.inl"
#include "machine/target_end.h"
