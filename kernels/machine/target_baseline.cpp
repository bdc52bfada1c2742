// The peak for any machine.
#include "machine/peak.h"
#include "machine/targets.h"

#include "machine/target_baseline.h"
#include "machine/peak.inl"
#include "machine/target_end.h"
