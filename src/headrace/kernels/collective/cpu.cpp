// Collectives between processes of one machine, as kernels: all_reduce, all_gather and all_to_all over a shared segment,
// and the lookups of a table that is split over ranks.
#include <string.h>

#include "segment.h"

extern "C" {

enum { HR_SUM_F32, HR_SUM_F64, HR_SUM_I32, HR_SUM_I64 };

typedef struct hr_all_reduce_args {
    hr_segment segment;
    const void *x;
    void *y;
    int64_t width;  // elements per row
    hr_dim rows;
    int32_t type;   // HR_SUM_*
} hr_all_reduce_args;
HR_LAYOUT(hr_all_reduce_args, segment, x, y, width, rows, type);

typedef struct hr_all_gather_args {
    hr_segment segment;
    const char *x;
    char *y;
    int64_t bytes;   // of a row of x; a row of y holds one from each rank
    hr_dim rows;
    int32_t stacked;  // the ranks' rows are stacked: all rows of rank 0, then those of rank 1, …
} hr_all_gather_args;
HR_LAYOUT(hr_all_gather_args, segment, x, y, bytes, rows, stacked);

typedef struct hr_all_to_all_args {
    hr_segment segment;
    const char *x;
    char *y;
    int64_t bytes;  // of a block; a row of x and y holds one for each rank
    hr_dim rows;
} hr_all_to_all_args;
HR_LAYOUT(hr_all_to_all_args, segment, x, y, bytes, rows);

typedef struct hr_own_args {
    const int32_t *ids;
    int32_t *own;   // own_ids: the id's row on this rank; 0 for ids of other ranks
    float *y;       // own_rows: rows of other ranks' ids become zero
    int64_t width;
    hr_dim rows;
    int32_t first, count;
} hr_own_args;
HR_LAYOUT(hr_own_args, ids, own, y, width, rows, first, count);
}

namespace {

// Copy a thread's share of `bytes`, in complete cache lines.
void copy_share(const hr_ctx *ctx, char *to, const char *from, int64_t bytes) {
    int64_t begin, end;
    hr_share(ctx, bytes, 64, &begin, &end);
    memcpy(to + begin, from + begin, (size_t)(end - begin));
}

template <class T>
void add_slots(const hr_segment *s, u32 turn, int64_t begin, int64_t end, T *y) {
    const T *first = (const T *)slot_of(s, turn, 0);
    for (int64_t i = begin; i < end; i++) y[i] = first[i];
    for (int rank = 1; rank < s->size; rank++) {
        const T *next = (const T *)slot_of(s, turn, rank);
        for (int64_t i = begin; i < end; i++) y[i] += next[i];
    }
}

template <class T>
void all_reduce(const hr_all_reduce_args *a, hr_ctx *ctx) {
    const hr_segment *s = &a->segment;
    int64_t bytes = hr_size(ctx, a->rows) * a->width * (int64_t)sizeof(T);
    exchange(
        s, ctx, bytes,
        [&](char *slot, int64_t begin, int64_t part) { copy_share(ctx, slot, (const char *)a->x + begin, part); },
        [&](u32 turn, int64_t at, int64_t part) {
            int64_t begin, end;
            hr_share(ctx, part / (int64_t)sizeof(T), 64 / (int64_t)sizeof(T), &begin, &end);
            // A run at a time, so that it stays in the cache while all ranks' values are added.
            constexpr int64_t RUN = 4096 / (int64_t)sizeof(T);
            T *y = (T *)((char *)a->y + at);
            for (int64_t i = begin; i < end; i += RUN) add_slots(s, turn, i, i + RUN < end ? i + RUN : end, y);
        });
}

}  // namespace

HR_KERNEL(all_reduce) {
    const auto *a = (const hr_all_reduce_args *)args;
    if (a->type == HR_SUM_F32) all_reduce<float>(a, ctx);
    if (a->type == HR_SUM_F64) all_reduce<double>(a, ctx);
    if (a->type == HR_SUM_I32) all_reduce<int32_t>(a, ctx);
    if (a->type == HR_SUM_I64) all_reduce<int64_t>(a, ctx);
}

HR_KERNEL(all_gather) {
    const auto *a = (const hr_all_gather_args *)args;
    const hr_segment *s = &a->segment;
    int64_t rows = hr_size(ctx, a->rows), bytes = a->bytes;
    if (a->stacked) bytes *= rows, rows = rows ? 1 : 0;
    exchange(
        s, ctx, rows * bytes,
        [&](char *slot, int64_t begin, int64_t part) { copy_share(ctx, slot, a->x + begin, part); },
        [&](u32 turn, int64_t at, int64_t part) {
            int64_t begin, end;
            hr_share(ctx, part, 64, &begin, &end);
            for (int rank = 0; rank < s->size; rank++) {
                const char *slot = slot_of(s, turn, rank);
                for (int64_t i = begin; i < end;) {
                    int64_t row = (at + i) / bytes, column = (at + i) % bytes;
                    int64_t n = bytes - column < end - i ? bytes - column : end - i;
                    memcpy(a->y + (row * s->size + rank) * bytes + column, slot + i, (size_t)n);
                    i += n;
                }
            }
        });
}

// Block j of a row is this rank's block of rank j's row. A rank reads only its own blocks of what the others write.
HR_KERNEL(all_to_all) {
    const auto *a = (const hr_all_to_all_args *)args;
    const hr_segment *s = &a->segment;
    int64_t block = a->bytes, stride = block * s->size, own = block * s->rank;
    exchange(
        s, ctx, hr_size(ctx, a->rows) * stride,
        [&](char *slot, int64_t begin, int64_t part) { copy_share(ctx, slot, a->x + begin, part); },
        [&](u32 turn, int64_t at, int64_t part) {
            int64_t begin, end;
            hr_share(ctx, part, 64, &begin, &end);
            begin += at;
            end += at;
            for (int rank = 0; rank < s->size && begin < end; rank++) {
                const char *slot = slot_of(s, turn, rank);
                for (int64_t row = begin / stride; row * stride + own < end; row++) {
                    int64_t start = row * stride + own;
                    int64_t first = start > begin ? start : begin, stop = start + block < end ? start + block : end;
                    char *to = a->y + row * stride + rank * block + (first - start);
                    if (first < stop) memcpy(to, slot + (first - at), (size_t)(stop - first));
                }
            }
        });
}

HR_KERNEL(own_ids) {
    const auto *a = (const hr_own_args *)args;
    int64_t begin, end;
    hr_share(ctx, hr_size(ctx, a->rows), 16, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t own = (int64_t)a->ids[i] - a->first;
        a->own[i] = own >= 0 && own < a->count ? (int32_t)own : 0;
    }
}

HR_KERNEL(own_rows) {
    const auto *a = (const hr_own_args *)args;
    int64_t begin, end;
    hr_share(ctx, hr_size(ctx, a->rows), 1, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t own = (int64_t)a->ids[i] - a->first;
        if (own < 0 || own >= a->count) memset(a->y + i * a->width, 0, (size_t)a->width * 4);
    }
}
