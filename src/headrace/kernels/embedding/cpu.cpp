// Embedding: rows of a packed table, which may also be the head, or of a plain table.
#include "../linear/cpu_codes.h"

namespace {

constexpr int64_t CHUNK = 128;

void packed_row(const hr_packed *table, int64_t id, float scale, float *buffer, float *y) {
    const hr_part *part = table->parts;
    for (; id >= part->rows; part++) id -= part->rows;
    const int32_t *order = table->inputs[part->input].order;
    const uint8_t *panel = part->panels + id / 16 * part->panel_bytes;
    for (int64_t k = 0; k < table->columns; k += CHUNK) {
        int64_t end = k + CHUNK < table->columns ? k + CHUNK : table->columns;
        const float *w = buffer;
        if (part->code == HR_CODE_F32) w = (const float *)panel + 16 * k;
        else expand(part, panel, k, end, buffer);
        for (int64_t i = k; i < end; i++) y[order ? order[i] : i] = w[16 * (i - k) + id % 16] * scale;
    }
}

void plain_row(const hr_embedding_args *a, int64_t id, float *y) {
    int64_t n = a->columns;
    if (a->raw_type == HR_F32) {
        const float *row = (const float *)a->raw + id * n;
        for (int64_t i = 0; i < n; i++) y[i] = row[i] * a->scale;
        return;
    }
    const uint16_t *row = (const uint16_t *)a->raw + id * n;
    if (a->raw_type == HR_BF16) {
        for (int64_t i = 0; i < n; i++) y[i] = from_bf16(row[i]) * a->scale;
        return;
    }
    for (int64_t i = 0; i < n; i += W) {
        vh h = {};
        memcpy(&h, row + i, (size_t)(n - i < W ? n - i : W) * 2);
        vstore_n(y + i, from_f16(h) * vset(a->scale), n - i);
    }
}

}  // namespace

HR_KERNEL(embedding) {
    const auto *a = (const hr_embedding_args *)args;
    if (ctx->scratch_bytes < CHUNK * 64) {
        *ctx->error = HR_ERROR_SCRATCH;
        return;
    }
    int64_t begin, end;
    hr_share(ctx, hr_size(ctx, a->m), 1, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        int64_t id = a->ids[r];
        float *y = a->y + r * a->columns;
        if (id < 0 || id >= a->rows) {
            *ctx->error = HR_ERROR_INDEX;
            memset(y, 0, (size_t)a->columns * 4);
        } else if (a->raw) {
            plain_row(a, id, y);
        } else {
            packed_row(a->table, id, a->scale, (float *)ctx->scratch, y);
        }
    }
}
