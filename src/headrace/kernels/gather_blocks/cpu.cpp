// Reads whole blocks of the cache as bytes.
#include "cpu.h"

HR_KERNEL(gather_blocks) { move_blocks((const hr_moved_blocks_args *)args, ctx, true); }
