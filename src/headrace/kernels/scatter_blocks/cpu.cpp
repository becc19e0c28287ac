// Writes whole blocks of the cache from bytes.
#include "../gather_blocks/cpu.h"

HR_KERNEL(scatter_blocks) { move_blocks((const hr_moved_blocks_args *)args, ctx, false); }
