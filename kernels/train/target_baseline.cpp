// Training's convolutions and norms for any machine.
#include "machine/targets.h"
#include "train/kernels.h"

#include "machine/target_baseline.h"
#include "train/table.inl"
#include "machine/target_end.h"
