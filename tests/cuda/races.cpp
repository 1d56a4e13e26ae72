// Ranks as threads of one process, for ThreadSanitizer, which sees no other kind. Follows the kernels' source and tables:
// TABLES[k][rank], SLOTS[k] and BLOCKS[k] are two algorithms' allreduce of COUNT float32.
#include <cstdio>
#include <cstdlib>

const u32 SLOT = 256, FIFO = 128;

struct World {
    explicit World(int size) : size(size) {
        fifos_at = STAGING_AT_ + static_cast<u64>(MAX_BLOCKS) * 2 * (size + 1) * SLOT;
        u64 bytes = fifos_at + static_cast<u64>(MAX_BLOCKS) * size * FIFO_DEPTH * FIFO;
        for (int r = 0; r < size; r++) {
            windows.push_back(zeroed(bytes));
            data.push_back(zeroed(4 * COUNT));
            scratch.push_back(zeroed(1 << 16));
            reports.push_back(reinterpret_cast<Report*>(zeroed(sizeof(Report))));
            regions[r] = data[r];
        }
    }
    static u8* zeroed(u64 bytes) {
        bytes = (bytes + 255) / 256 * 256;
        return static_cast<u8*>(memset(aligned_alloc(256, bytes), 0, bytes));
    }
    Group group(int rank) const {
        Group g = {rank, size, PATIENCE, SLOT, FIFO, STAGING_AT_, fifos_at, reports[rank], regions, {}};
        for (int r = 0; r < size; r++) g.window[r] = windows[r];
        return g;
    }
    int size;
    u64 fifos_at;
    std::vector<u8*> windows, data, scratch;
    std::vector<Report*> reports;
    u8* regions[MAX_RANKS] = {};
};

int main() {
    World world(RANKS);
    std::atomic<int> wrong = 0;
    auto rank_main = [&](int rank) {
        Group g = world.group(rank);
        float* x = reinterpret_cast<float*>(world.data[rank]);
        u8* at = world.data[rank];
        for (int turn = 0; turn < TURNS; turn++) {
            for (int i = 0; i < COUNT; i++) x[i] = static_cast<float>(rank + 1 + i % 5 + turn);
            Call call = {at, at, COUNT, 4, SLOT, 1, EVERYONE, EVERYONE, 0, 0, 0};
            switch (turn % 5) {
                case 0:
                    call.piece = 64;  // several in a block's share
                    launch(2, 2, [&] { one_shot_float32_sum(g, call); });
                    break;
                case 1: launch(2, 2, [&] { exchange_float32_sum(g, call); }); break;
                case 2:
                    call.region = 1;
                    launch(2, 2, [&] { exchange_float32_sum(g, call); });
                    break;
                default: {
                    int k = turn % 5 - 3;
                    const i64* table = TABLES[k][rank];
                    Steps steps = {{table, table}, 1, SLOTS[k], 0, at, at, at, world.scratch[rank], 1 << 14, 1 << 15};
                    launch(BLOCKS[k], 2, [&] { steps_float32_sum(g, steps); });
                }
            }
            for (int i = 0; i < COUNT; i++) {
                float wanted = static_cast<float>(world.size * (i % 5 + turn) + world.size * (world.size + 1) / 2);
                if (x[i] != wanted && wrong++ < 5) printf("rank %d turn %d: x[%d] is %g, not %g\n", rank, turn, i, x[i], wanted);
            }
        }
    };
    std::vector<std::thread> ranks;
    for (int r = 0; r < RANKS; r++) ranks.emplace_back(rank_main, r);
    for (std::thread& rank : ranks) rank.join();
    printf("%d wrong\n", wrong.load());
    return wrong != 0;
}
