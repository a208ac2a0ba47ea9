// The kernels for what every processor of its kind has.
#include "kernels.h"
#include "rows.h"

PYG_TRUST_KERNELS(kBaseKernels, 0)
