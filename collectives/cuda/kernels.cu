// The kernels, for one element type and operation: ELEMENT (a struct of fold.cuh) and OPERATION (OP_SUM ...) say which.
// A rank's kernels run in order on its stream; all blocks of a kernel must be resident, since they wait for others'.
#include "exchange.cuh"
#include "steps.cuh"

static_assert(sizeof(Places) == PLACES_BYTES && sizeof(Group) == GROUP_BYTES && sizeof(Call) == CALL_BYTES &&
                  sizeof(Steps) == STEPS_BYTES && sizeof(Line) == LINE_BYTES && sizeof(Counters) <= LINES_AT,
              "arguments.py and layout.py say otherwise");

#define ENTRY(name) extern "C" __global__ void __launch_bounds__(MOST_THREADS, 1) KERNEL(name)

// Local: out = the fold of the operands, by all threads of the grid.
ENTRY(fold)(ARGUMENT(Places) out, ARGUMENT(Places) in, ARGUMENT(u64) bytes) {
    fold<ELEMENT, OPERATION>(out, in, bytes, equal(in.n), grid());
}

ENTRY(one_shot)(ARGUMENT(Group) g, ARGUMENT(Call) call) {
    one_shot<ELEMENT, OPERATION>(g, call);
}

ENTRY(exchange)(ARGUMENT(Group) g, ARGUMENT(Call) call) {
    exchange<ELEMENT, OPERATION>(g, call);
}

ENTRY(steps)(ARGUMENT(Group) g, ARGUMENT(Steps) steps) {
    run_steps<ELEMENT, OPERATION>(g, steps);
}

// Nothing but `rounds` meetings: what signals cost.
ENTRY(signals)(ARGUMENT(Group) g, ARGUMENT(i32) rounds) {
    SHARED(u32, lost);
    if (!usable(g, lost)) return;
    u32 epoch = g.counters()->epoch[blockIdx.x];
    for (i32 k = 0; k < rounds; k++) {
        if (!meet(g, GIVEN, ++epoch, 0, 0, lost)) return;
    }
    if (threadIdx.x == 0) g.counters()->epoch[blockIdx.x] = epoch;
}
