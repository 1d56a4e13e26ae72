// Kernels for ranks that map each other's memory: one_shot, in which everyone folds everything, and `exchange`, which is
// allreduce, reduce_scatter, allgather, broadcast and reduce. These differ in who owns a chunk, whether owners fold what
// others give, and who takes the result (native/staged.py, on the CPU, is cut alike).
//
// One epoch is one piece of every block's share. In each epoch all ranks meet at least once, so whoever writes a half of
// staging knows that all have ended the epoch before the last, in which it was read. Where every rank says, as it comes
// to the first meeting, that its memory is symmetric, blocks read and write that instead, and meet again at the end.
#pragma once
#include "window.cuh"

enum { EVERYONE = -1, NOBODY = -2 };

struct Call {
    const u8* input;
    u8* output;
    u64 count;     // elements of the message
    u32 unit;      // elements of which every chunk is a multiple, where none of them is visible to the caller
    u32 piece;     // bytes of a chunk that are staged at once, at most slot_bytes
    i32 gives;     // whether ranks give what owners fold
    i32 owner;     // of the only chunk, or EVERYONE: rank r owns chunk r
    i32 taker;     // of results: a rank, EVERYONE or NOBODY
    u32 region;    // of symmetric memory in which what I share lies; 0: ordinary memory
    u64 offset;    // of it there
    i32 packed;    // bits: INPUT_CHUNK the input is my chunk alone, OUTPUT_CHUNK the output is
};

enum { INPUT_CHUNK = 1, OUTPUT_CHUNK = 2 };

// The chunks, as torch.tensor_split cuts whole units; what is left over belongs to the last chunk.
struct Chunks {
    u64 count, unit, n;

    DEVICE u64 start(u64 i) const {
        u64 units = (count + unit - 1) / unit, rest = units % n;
        u64 at = (i * (units / n) + (i < rest ? i : rest)) * unit;
        return at < count ? at : count;
    }
};

// The share of this block in chunk `c`, in bytes of the message.
DEVICE Part share(const Chunks& chunks, int c, u64 size) {
    u64 from = chunks.start(c), until = chunks.start(c + 1);
    Part part = part_of((until - from) * size, blockIdx.x, gridDim.x);
    return {part.from + from * size, part.bytes};
}

// Where every rank's shared memory lies, found from the lines of the last meeting; false where some rank's is ordinary.
DEVICE bool find_places(const Group& g, const Call& call, u32 epoch, Places& places) {
    for (int peer = threadIdx.x; peer < g.size; peer += blockDim.x) {
        const Line* line = g.line(g.rank, GIVEN, blockIdx.x, peer);
        u32 region = peer == g.rank ? call.region : line->region[epoch & 1];
        u64 offset = peer == g.rank ? call.offset : line->offset[epoch & 1];
        places.at[peer] = region ? g.regions[static_cast<u64>(region - 1) * MAX_RANKS + peer] + offset : nullptr;
    }
    __syncthreads();
    bool everywhere = true;
    for (int peer = 0; peer < g.size; peer++) everywhere = everywhere && places.at[peer] != nullptr;
    return everywhere;
}

template <class N, int OP>
DEVICE void one_shot(const Group& g, const Call& call) {
    SHARED(u32, lost);
    SHARED(Places, in);
    SHARED(Places, out);
    if (!usable(g, lost)) return;
    const u64 size = sizeof(typename N::Bits), piece = static_cast<u64>(call.piece) * (g.size + 1);
    Part mine = part_of(call.count * size, blockIdx.x, gridDim.x);
    u32 epoch = g.counters()->epoch[blockIdx.x];
    for (u64 k = 0; k * piece < mine.bytes; k++) {
        u32 half = ++epoch % 2;
        Part p = piece_of(mine, k, piece);
        const u8* input = call.input + p.from;
        copy(g.staging(g.rank, blockIdx.x, half, 0), input, p.bytes, block());
        if (!meet(g, GIVEN, epoch, 0, 0, lost)) return;
        for (int r = threadIdx.x; r < g.size; r += blockDim.x)
            in.at[r] = r == g.rank ? const_cast<u8*>(input) : g.staging(r, blockIdx.x, half, 0);
        if (threadIdx.x == 0) in.n = g.size, out.n = 1, out.at[0] = call.output + p.from;
        __syncthreads();
        fold<N, OP>(out, in, p.bytes, equal(g.size), block());
        __syncthreads();
    }
    if (threadIdx.x == 0) g.counters()->epoch[blockIdx.x] = epoch;
}

template <class N, int OP>
DEVICE void exchange(const Group& g, const Call& call) {
    SHARED(u32, lost);
    SHARED(Places, places);
    SHARED(Places, in);
    SHARED(Places, out);
    if (!usable(g, lost)) return;
    const u64 size = sizeof(typename N::Bits);
    bool all = call.owner == EVERYONE, i_own = all || call.owner == g.rank;
    bool i_take = call.taker == EVERYONE || call.taker == g.rank;
    Chunks chunks = {call.count, call.unit, static_cast<u64>(all ? g.size : 1)};
    int my_chunk = all ? g.rank : 0, result = g.size;
    u64 first = call.packed ? chunks.start(g.rank) * size : 0;
    const u8* input = call.input - (call.packed & INPUT_CHUNK ? first : 0);
    u8* output = call.output - (call.packed & OUTPUT_CHUNK ? first : 0);
    u64 most = 0;
    for (u64 c = 0; c < chunks.n; c++) {
        u64 bytes = share(chunks, c, size).bytes;
        most = bytes > most ? bytes : most;
    }
    u32 epoch = g.counters()->epoch[blockIdx.x];
    bool direct = false;  // all in symmetric memory: one epoch
    for (u64 k = 0; !direct && k * call.piece < most; k++) {
        u32 half = ++epoch & 1;
        Part mine = piece_of(share(chunks, my_chunk, size), k, call.piece);
        for (u64 c = 0; call.gives && c < chunks.n; c++) {  // to the owners of the other chunks
            Part p = piece_of(share(chunks, c, size), k, call.piece);
            if (all ? static_cast<int>(c) != g.rank : !i_own)
                copy(g.staging(g.rank, blockIdx.x, half, c), input + p.from, p.bytes, block());
        }
        if (!call.gives && i_own) copy(g.staging(g.rank, blockIdx.x, half, result), input + mine.from, mine.bytes, block());
        if (!meet(g, GIVEN, epoch, call.region, call.offset, lost)) return;
        direct = k == 0 && find_places(g, call, epoch, places);
        if (direct) mine = share(chunks, my_chunk, size);
        if (call.gives && i_own) {
            __syncthreads();
            for (int r = threadIdx.x; r < g.size; r += blockDim.x) {
                in.at[r] = direct ? places.at[r] + mine.from
                           : r == g.rank ? const_cast<u8*>(input) + mine.from
                                         : g.staging(r, blockIdx.x, half, my_chunk);
                out.at[r] = places.at[r] + mine.from;
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                in.n = g.size, out.n = direct && call.taker == EVERYONE ? g.size : 0;
                if (out.n == 0 && (i_take || call.taker == NOBODY)) out.at[out.n++] = output + mine.from;
                if (!direct && call.taker != NOBODY) out.at[out.n++] = g.staging(g.rank, blockIdx.x, half, result);
            }
            __syncthreads();
            fold<N, OP>(out, in, mine.bytes, equal(g.size), block());
        } else if (direct && !call.gives) {
            for (int r = 0; all && r < g.size; r++) copy(places.at[r] + mine.from, input + mine.from, mine.bytes, block());
            if (!i_own) copy(output + mine.from, places.at[call.owner] + mine.from, mine.bytes, block());
        }
        if (!direct && call.taker == NOBODY) continue;
        if ((direct || call.gives) && !meet(g, FOLDED, epoch, 0, 0, lost)) return;
        for (u64 c = 0; !direct && i_take && c < chunks.n; c++) {
            int owner = all ? static_cast<int>(c) : call.owner;
            Part p = piece_of(share(chunks, c, size), k, call.piece);
            if (owner != g.rank) copy(output + p.from, g.staging(owner, blockIdx.x, half, result), p.bytes, block());
            else if (!call.gives) copy(output + p.from, input + p.from, p.bytes, block());
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) g.counters()->epoch[blockIdx.x] = epoch;
}
