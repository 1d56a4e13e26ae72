// A rank's window: device memory that all ranks of a group map. Blocks of the same number on all ranks work together,
// each on its own share of the message, and each pair of them has lines of its own to signal by.
//
//     counters   of this rank alone: epochs and what it has sent and taken, of each block
//     lines      one for each (kind, block, peer), 128 bytes apart: an epoch, and where the peer's memory lies
//     staging    of each block two halves, used in turn; each has a slot for every rank and one for a result
//     FIFOs      of each (channel, sender): FIFO_DEPTH pieces, for the steps of schedules
//
// Epochs live in the window and only grow, so a captured graph replays; they are compared by signed difference.
#pragma once
#include "fold.cuh"

enum { GIVEN, FOLDED, SENT, FREED, LINE_KINDS };

struct Counters {
    u32 epoch[MAX_BLOCKS];
    u32 sent[MAX_BLOCKS][MAX_RANKS], taken[MAX_BLOCKS][MAX_RANKS];  // pieces through the FIFOs
    u32 joining[MAX_BLOCKS], joined[MAX_BLOCKS];                    // blocks of a part that have ended a phase
    u32 failed;
};

struct Line {
    u32 epoch;
    u32 region[2];  // of symmetric memory, for odd and even epochs; 0: ordinary memory
    u32 unused;
    u64 offset[2];
    u8 apart[LINE_BYTES - 32];
};

struct Report {  // in pinned memory of the host: what went wrong first, and whether the host wants us to stop
    u32 code, kind, block, peer, wanted, seen, stop, unused;
};

struct Group {  // the ranks, as one of them sees them
    i32 rank, size;
    u64 patience;  // nanoseconds that a block waits for a peer
    u32 slot_bytes, fifo_bytes;
    u64 staging_at, fifos_at;  // in a window
    Report* report;
    u8* const* regions;  // addresses of symmetric memory: MAX_RANKS of each region, from number 1 on
    u8* window[MAX_RANKS];

    DEVICE u8* own() const { return window[rank]; }
    DEVICE Counters* counters() const { return reinterpret_cast<Counters*>(own()); }
    DEVICE Line* line(int whose, int kind, int block, int peer) const {
        u64 index = (static_cast<u64>(kind) * MAX_BLOCKS + block) * MAX_RANKS + peer;
        return reinterpret_cast<Line*>(window[whose] + LINES_AT + index * LINE_BYTES);
    }
    DEVICE u8* staging(int whose, int block, u32 half, int slot) const {
        u64 index = (static_cast<u64>(block) * 2 + half) * (size + 1) + slot;
        return window[whose] + staging_at + index * slot_bytes;
    }
    DEVICE u8* fifo(int whose, int channel, int sender, u32 piece) const {
        u64 index = (static_cast<u64>(channel) * size + sender) * FIFO_DEPTH + piece % FIFO_DEPTH;
        return window[whose] + fifos_at + index * fifo_bytes;
    }
};

DEVICE bool reached(u32 seen, u32 wanted) { return static_cast<i32>(seen - wanted) >= 0; }

// What one thread does in a long wait: has the host asked to stop, or is it too late? The first to fail says why.
DEVICE bool must_stop(const Group& g, u64 since, int kind, int block, int peer, u32 wanted, u32 seen) {
    u32 code = 0;
    if (load_relaxed(&g.report->stop)) code = STOPPED;
    if (nanoseconds() - since > g.patience) code = TIMED_OUT;
    if (!code) return false;
    if (compare_and_swap(&g.counters()->failed, 0, code) == 0) {
        Report* r = g.report;
        r->kind = kind, r->block = block, r->peer = peer, r->wanted = wanted, r->seen = seen;
        store_release(&r->code, code);
    }
    return true;
}

// Until a line's epoch has come to `wanted`; false if it never does.
DEVICE bool wait_for(const Group& g, int kind, int block, int peer, u32 wanted) {
    const Line* line = g.line(g.rank, kind, block, peer);
    u64 since = 0;
    for (u32 looks = 1;; looks++) {
        u32 seen = load_acquire(&line->epoch);
        if (reached(seen, wanted)) return true;
        give_way();
        if (looks % LOOKS == 0) {
            if (!since) since = nanoseconds();
            if (must_stop(g, since, kind, block, peer, wanted, seen)) return false;
        }
    }
}

// Whether a kernel may start: nothing has failed before. For all threads of the block alike; `lost` is in shared memory.
DEVICE bool usable(const Group& g, u32& lost) {
    if (threadIdx.x == 0) lost = load_relaxed(&g.counters()->failed);
    __syncthreads();
    return !lost;
}

// All blocks of this number meet: what any of them wrote before, all see after. Called by all threads of the block;
// false, for all of them, where a peer never came.
DEVICE bool meet(const Group& g, int kind, u32 epoch, u32 region, u64 offset, u32& lost) {
    int block = blockIdx.x;
    __syncthreads();
    for (int peer = threadIdx.x; peer < g.size; peer += blockDim.x) {
        if (peer == g.rank) continue;
        Line* line = g.line(peer, kind, block, g.rank);
        line->region[epoch & 1] = region, line->offset[epoch & 1] = offset;
        store_release(&line->epoch, epoch);
    }
    for (int peer = threadIdx.x; peer < g.size; peer += blockDim.x) {
        if (peer != g.rank && !wait_for(g, kind, block, peer, epoch)) compare_and_swap(&lost, 0, 1);
    }
    __syncthreads();
    return !lost;
}

// Part `index` of `parts` of some bytes, cut at multiples of 16.
struct Part {
    u64 from, bytes;
};

DEVICE Part part_of(u64 bytes, u64 index, u64 parts) {
    u64 packs = (bytes + 15) / 16, from = packs * index / parts * 16, until = packs * (index + 1) / parts * 16;
    from = from < bytes ? from : bytes;
    return {from, (until < bytes ? until : bytes) - from};
}

DEVICE Part piece_of(Part part, u64 index, u64 bytes) {
    u64 from = index * bytes < part.bytes ? index * bytes : part.bytes;
    return {part.from + from, part.bytes - from < bytes ? part.bytes - from : bytes};
}
