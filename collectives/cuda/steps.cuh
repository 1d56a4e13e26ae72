// The interpreter of lowered tables (collectives/layout.py): any schedule, over FIFOs in the receiver's window.
//
// A message is cut into parts, each with a table of its own, so that parts need nothing of each other; and in a part each
// slot of each lane is one block. A block advances whichever row of its round can move, a piece at a time, as the CPU's
// executor does (native/steps.py); so what is proved of schedules holds here too.
#pragma once
#include "window.cuh"

struct Steps {
    const i64* table[2];  // of all parts but the last, and of the last
    i32 parts, slots;     // slots: of a lane, at most; with a lane's number they make a FIFO's
    u64 part_bytes;       // of the caller's memory between two parts
    u8* data;
    const u8* input;
    u8* output;
    u8* scratch;          // of all parts, then the memory of their slots
    u64 scratch_bytes, slot_bytes;  // of a part
};

struct Round {  // what a block is at; in shared memory
    u32 done[MAX_ROWS];    // pieces of each row that are finished
    i32 chosen;            // the row that moves next; ROUND_ENDED, ROUND_LOST
    Places in, out;        // of a fold
};

enum { ROUND_ENDED = -1, ROUND_LOST = -2 };

struct Block {  // where a block is in its part of the schedule
    const i64* table;
    u8* buffers[5];
    i64 segment;
    i32 slot, channel;  // of the FIFOs
    u32 piece_bytes;

    DEVICE const i64* entry(int section, i64 index, int words) const { return table + table[section] + index * words; }
    DEVICE u64 bytes(const i64* row) const {
        return segment < row[AT_FULL] ? row[AT_LENGTH] : segment == row[AT_FULL] ? row[AT_TAIL_LENGTH] : 0;
    }
    DEVICE u32 pieces(const i64* row) const { return static_cast<u32>((bytes(row) + piece_bytes - 1) / piece_bytes); }
    DEVICE u64 length(const i64* row, u32 piece) const {
        u64 rest = bytes(row) - static_cast<u64>(piece) * piece_bytes;
        return rest < piece_bytes ? rest : piece_bytes;
    }
    DEVICE u8* base(const i64* row) const {  // of the row's place, or of where its message lands
        u64 apart = slot * row[AT_SLOT_STRIDE];
        if (row[AT_LANDING] != LANDING_PLAIN) return buffers[BUFFER_SLOT] + row[AT_STAGE] + apart;
        u64 place = segment < row[AT_FULL] ? row[AT_OFFSET] + segment * row[AT_STRIDE] : row[AT_TAIL_OFFSET];
        return buffers[row[AT_BUFFER]] + place + apart;
    }
    DEVICE u8* own(const i64* term, const i64* row) const {
        u64 place = segment < row[AT_FULL] ? term[AT_TERM_OFFSET] + segment * term[AT_TERM_STRIDE] : term[AT_TERM_TAIL_OFFSET];
        return buffers[term[AT_TERM_BUFFER]] + place + slot * term[AT_TERM_SLOT_STRIDE];
    }
};

DEVICE bool arrived(const Group& g, int channel, int peer) {
    u32 next = g.counters()->taken[channel][peer] + 1;
    return reached(load_acquire(&g.line(g.rank, SENT, channel, peer)->epoch), next);
}

DEVICE bool has_room(const Group& g, int channel, int peer) {
    u32 next = g.counters()->sent[channel][peer] + 1;
    return reached(load_acquire(&g.line(g.rank, FREED, channel, peer)->epoch), next - FIFO_DEPTH);
}

// Whether the next piece of a fold may be written: sends of the round have read what it overwrites.
DEVICE bool sends_have_read(const Block& b, const Round& round, const i64* rows, const i64* row, u32 done) {
    for (i64 k = row[AT_AFTER]; k < row[AT_END_AFTER]; k++) {
        u32 pieces = b.pieces(rows + k * ROW_WORDS);
        if (round.done[k] < pieces && (!row[AT_STREAM] || round.done[k] <= done)) return false;
    }
    return true;
}

DEVICE bool operands_are_there(const Group& g, const Block& b, const Round& round, const i64* rows, const i64* row) {
    for (i64 j = 0; j < row[AT_TERM_COUNT]; j++) {
        i64 from = b.entry(SECTION_TERMS, row[AT_FIRST_TERM] + j, TERM_WORDS)[AT_TERM_ROW];
        if (from == TERM_OWN) continue;
        const i64* source = rows + from * ROW_WORDS;
        if (row[AT_STREAM] ? !arrived(g, b.channel, source[AT_PEER]) : round.done[from] < b.pieces(source)) return false;
    }
    return true;
}

// Whether a row can move now, by a piece. `busy`: whether it has anything left.
DEVICE bool can_move(const Group& g, const Block& b, const Round& round, const i64* rows, int r, bool& busy) {
    const i64* row = rows + r * ROW_WORDS;
    if (row[AT_KIND] == KIND_RECV && row[AT_LANDING] == LANDING_STREAMED) return false;  // its fold takes the pieces
    if (round.done[r] >= b.pieces(row)) return false;
    busy = true;
    if (row[AT_KIND] == KIND_FOLD)
        return sends_have_read(b, round, rows, row, round.done[r]) && operands_are_there(g, b, round, rows, row);
    if (row[AT_PREVIOUS]) {  // messages of a pair go in order
        i64 before = r - row[AT_PREVIOUS];
        if (round.done[before] < b.pieces(rows + before * ROW_WORDS)) return false;
    }
    return row[AT_KIND] == KIND_SEND ? has_room(g, b.channel, row[AT_PEER]) : arrived(g, b.channel, row[AT_PEER]);
}

// One thread: the row that moves next, when one can; rows take turns.
DEVICE int choose(const Group& g, const Block& b, const Round& round, const i64* rows, int count) {
    u64 since = 0;
    for (u32 looks = 1;; looks++) {
        bool busy = false;
        for (int i = 1; i <= count; i++) {
            int r = (round.chosen < 0 ? i - 1 : round.chosen + i) % count;
            if (can_move(g, b, round, rows, r, busy)) return r;
        }
        if (!busy) return ROUND_ENDED;
        give_way();
        if (looks % LOOKS == 0) {
            if (!since) since = nanoseconds();
            int peer = 0;
            for (int r = 0; r < count; r++)  // somebody of this round is waited for: the first row that has not ended
                if (rows[r * ROW_WORDS + AT_KIND] != KIND_FOLD && round.done[r] < b.pieces(rows + r * ROW_WORDS)) {
                    peer = rows[r * ROW_WORDS + AT_PEER];
                    break;
                }
            if (must_stop(g, since, SENT, blockIdx.x, peer, g.counters()->taken[b.channel][peer] + 1,
                          load_relaxed(&g.line(g.rank, SENT, b.channel, peer)->epoch)))
                return ROUND_LOST;
        }
    }
}

// One thread: where the operands of a fold's next piece lie, and its target.
DEVICE void prepare_fold(const Group& g, const Block& b, Round& round, const i64* rows, const i64* row, u32 piece) {
    u64 at = static_cast<u64>(piece) * b.piece_bytes;
    for (i64 j = 0; j < row[AT_TERM_COUNT]; j++) {
        const i64* term = b.entry(SECTION_TERMS, row[AT_FIRST_TERM] + j, TERM_WORDS);
        const i64* source = rows + term[AT_TERM_ROW] * ROW_WORDS;
        i64 peer = term[AT_TERM_ROW] == TERM_OWN ? 0 : source[AT_PEER];
        round.in.at[j] = term[AT_TERM_ROW] == TERM_OWN ? b.own(term, row) + at
                         : row[AT_STREAM] ? g.fifo(g.rank, b.channel, peer, g.counters()->taken[b.channel][peer])
                                          : b.base(source) + at;
    }
    round.in.n = row[AT_TERM_COUNT];
    round.out.at[0] = b.base(row) + at, round.out.n = 1;
}

// One thread: a piece has been taken from the FIFO of a peer.
DEVICE void release(const Group& g, int channel, int peer) {
    store_release(&g.line(peer, FREED, channel, g.rank)->epoch, ++g.counters()->taken[channel][peer]);
}

// All threads: move the chosen row by a piece.
template <class N, int OP>
DEVICE void move(const Group& g, const Block& b, Round& round, const i64* rows) {
    int r = round.chosen;
    const i64* row = rows + r * ROW_WORDS;
    u32 piece = round.done[r];
    int peer = row[AT_PEER];
    u8* place = b.base(row) + static_cast<u64>(piece) * b.piece_bytes;
    u64 bytes = b.length(row, piece);
    if (row[AT_KIND] == KIND_SEND) {
        copy(g.fifo(peer, b.channel, g.rank, g.counters()->sent[b.channel][peer]), place, bytes, block());
    } else if (row[AT_KIND] == KIND_RECV) {
        copy(place, g.fifo(g.rank, b.channel, peer, g.counters()->taken[b.channel][peer]), bytes, block());
    } else {
        const i64* weights = b.table + b.table[SECTION_WEIGHTS] + row[AT_FIRST_TERM];
        i64 whole = 0;
        for (int j = 0; j < round.in.n; j++) whole += weights[j];
        fold<N, OP>(round.out, round.in, bytes, {weights, whole}, block());
    }
    __syncthreads();
    if (threadIdx.x) return;
    round.done[r]++;
    if (row[AT_KIND] == KIND_SEND) {
        store_release(&g.line(peer, SENT, b.channel, g.rank)->epoch, ++g.counters()->sent[b.channel][peer]);
    } else if (row[AT_KIND] == KIND_RECV) {
        release(g, b.channel, peer);
    } else if (row[AT_STREAM]) {
        for (i64 j = 0; j < row[AT_TERM_COUNT]; j++) {
            i64 from = b.entry(SECTION_TERMS, row[AT_FIRST_TERM] + j, TERM_WORDS)[AT_TERM_ROW];
            if (from != TERM_OWN) release(g, b.channel, rows[from * ROW_WORDS + AT_PEER]);
        }
    }
}

template <class N, int OP>
DEVICE bool run_round(const Group& g, const Block& b, Round& round, const i64* rows, int count) {
    __syncthreads();
    for (int r = threadIdx.x; r < count; r += blockDim.x) round.done[r] = 0;
    if (threadIdx.x == 0) round.chosen = ROUND_ENDED;
    while (true) {
        __syncthreads();
        if (threadIdx.x == 0) {
            int r = round.chosen = choose(g, b, round, rows, count);
            if (r >= 0 && rows[r * ROW_WORDS + AT_KIND] == KIND_FOLD)
                prepare_fold(g, b, round, rows, rows + r * ROW_WORDS, round.done[r]);
        }
        __syncthreads();
        if (round.chosen < 0) return round.chosen == ROUND_ENDED;
        move<N, OP>(g, b, round, rows);
    }
}

// The blocks of a part wait for each other; false where one of them has failed.
DEVICE bool join(const Group& g, int part, u32 blocks, u32& lost) {
    __syncthreads();
    if (threadIdx.x == 0) {
        Counters* c = g.counters();
        u32 before = load_acquire(&c->joined[part]);
        if (add_and_fetch(&c->joining[part], 1) == blocks) {
            c->joining[part] = 0;
            store_release(&c->joined[part], before + 1);
        } else {
            while (!lost && load_acquire(&c->joined[part]) == before) {
                lost = load_relaxed(&c->failed);
                give_way();
            }
        }
    }
    __syncthreads();
    return !lost;
}

template <class N, int OP>
DEVICE void run_steps(const Group& g, const Steps& s) {
    SHARED(u32, lost);
    SHARED(Round, round);
    if (!usable(g, lost)) return;
    int blocks = gridDim.x / s.parts, part = blockIdx.x / blocks, me = blockIdx.x % blocks;
    Block b;
    b.table = s.table[part == s.parts - 1];
    u64 from = part * s.part_bytes;
    u8* memory = s.scratch + part * (s.scratch_bytes + s.slot_bytes);
    u8* buffers[5] = {s.data + from, const_cast<u8*>(s.input) + from, s.output + from, memory, memory + s.scratch_bytes};
    UNROLL for (int i = 0; i < 5; i++) b.buffers[i] = buffers[i];
    b.piece_bytes = b.table[TABLE_PIECE_BYTES];
    for (i64 p = 0; p < b.table[TABLE_PHASES]; p++) {
        const i64* phase = b.entry(SECTION_PHASES, p, PHASE_WORDS);
        const i64* lanes = b.entry(SECTION_LANES, phase[AT_FIRST_LANE], LANE_WORDS);
        for (i64 l = 0; l < phase[AT_END_LANE] - phase[AT_FIRST_LANE]; l++) {
            const i64* lane = lanes + l * LANE_WORDS;
            b.slot = me - static_cast<i32>(lane[AT_FIRST_INSTANCE] - lanes[AT_FIRST_INSTANCE]);
            if (b.slot < 0 || b.slot >= lane[AT_SLOTS]) continue;
            b.channel = (static_cast<i32>(lane[AT_CHANNEL]) * s.slots + b.slot) * s.parts + part;
            for (b.segment = b.slot; b.segment < lane[AT_SEGMENTS]; b.segment += lane[AT_SLOTS]) {
                for (i64 k = 0; k < lane[AT_N_ROUNDS]; k++) {
                    const i64* r = b.entry(SECTION_ROUNDS, lane[AT_FIRST_ROUND] + k, ROUND_WORDS);
                    const i64* rows = b.entry(SECTION_ROWS, r[AT_FIRST_ROW], ROW_WORDS);
                    if (!run_round<N, OP>(g, b, round, rows, r[AT_ROW_COUNT])) return;
                }
            }
        }
        if (!join(g, part, blocks, lost)) return;
    }
}
