// One token's experts and their shares.
#ifndef HEADRACE_MOE_ROUTE_H
#define HEADRACE_MOE_ROUTE_H
#include "cpu.h"
#include "simd.h"

namespace {

// Softmax or sigmoid of a row.
inline void score_row(const hr_moe_args *a, const float *x, float *scores) {
    int64_t n = a->experts;
    if (a->sigmoid) {
        for (int64_t i = 0; i < n; i += W)
            vstore_n(scores + i, vset(1.0f) / (vset(1.0f) + vexp(-vload_n(x + i, n - i))), n - i);
        return;
    }
    float top = x[0];
    for (int64_t i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    vf sum = vset(0.0f);
    for (int64_t i = 0; i < n; i += W) {
        vf e = vexp(vload_n(x + i, n - i, -INFINITY) - vset(top));
        vstore_n(scores + i, e, n - i);
        if (n - i >= W) sum = sum + e;
        else sum = sum + vload_n(scores + i, n - i);
    }
    vf total = vset(hsum(sum));
    for (int64_t i = 0; i < n; i += W) vstore_n(scores + i, vload_n(scores + i, n - i) / total, n - i);
}

// The places of the k largest of n values in descending order, ties by the lower place; those in `shut` are ignored.
inline void largest_k(const float *values, int64_t n, int64_t k, const uint8_t *shut, int32_t *found) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        if (shut && shut[i]) continue;
        if (count == k && !(values[i] > values[found[k - 1]])) continue;
        int64_t at = count < k ? count++ : k - 1;
        for (; at > 0 && values[i] > values[found[at - 1]]; at--) found[at] = found[at - 1];
        found[at] = (int32_t)i;
    }
}

// Exclude experts outside the best groups (`shut`).
inline void shut_groups(const hr_moe_args *a, const float *choice, float *worth, int32_t *best, uint8_t *shut) {
    int64_t run = a->experts / a->groups, count = a->group_best < run ? a->group_best : run;
    for (int64_t g = 0; g < a->groups; g++) {
        largest_k(choice + g * run, run, count, nullptr, best);
        worth[g] = 0.0f;
        for (int64_t i = 0; i < count; i++) worth[g] += choice[g * run + best[i]];
    }
    largest_k(worth, a->groups, a->top_groups, nullptr, best);
    memset(shut, 1, (size_t)a->experts);
    for (int64_t i = 0; i < a->top_groups; i++) memset(shut + best[i] * run, 0, (size_t)run);
}

// Bytes of scratch that `route_token` needs.
HR_INLINE int64_t route_scratch(const hr_moe_args *a) { return (int64_t)a->experts * 17 + 64; }

inline void route_token(const hr_moe_args *a, int64_t token, char *scratch) {
    int64_t n = a->experts, k = a->top_k;
    float *scores = (float *)scratch, *choice = scores + n, *worth = choice + n;
    int32_t *best = (int32_t *)(worth + n);
    uint8_t *shut = nullptr;
    score_row(a, a->router + token * n, scores);
    if (a->bias)
        for (int64_t i = 0; i < n; i++) choice[i] = scores[i] + a->bias[i];
    else choice = scores;
    if (a->groups > 1) {
        shut = (uint8_t *)(best + n);
        shut_groups(a, choice, worth, best, shut);
    }
    int32_t *chosen = a->chosen + token * k;
    float *shares = a->shares + token * k, sum = 0.0f;
    largest_k(choice, n, k, shut, chosen);
    for (int64_t i = 0; i < k; i++) sum += shares[i] = scores[chosen[i]];
    float unit = a->renormalize ? (sum > 1e-20f ? sum : 1e-20f) : 1.0f;
    for (int64_t i = 0; i < k; i++) shares[i] = shares[i] / unit * a->scale;
}

// Sort the pairs of the experts [begin, begin + held) by expert with a counting sort, which is stable. `first` counts
// from `begin`; the place of a pair of another expert is -1.
inline void sort_pairs(const hr_moe_args *a, int64_t pairs, int64_t begin, int64_t held) {
    int32_t *first = a->first;
    auto here = [&](int64_t p) { return a->chosen[p] >= begin && a->chosen[p] < begin + held; };
    memset(first, 0, (size_t)(held + 1) * 4);
    for (int64_t p = 0; p < pairs; p++)
        if (here(p)) first[a->chosen[p] - begin + 1]++;
    for (int64_t e = 0; e < held; e++) first[e + 1] += first[e];
    for (int64_t p = 0; p < pairs; p++) {
        a->place[p] = -1;
        if (!here(p)) continue;
        int32_t at = first[a->chosen[p] - begin]++;
        a->order[at] = (int32_t)p;
        a->place[p] = at;
    }
    for (int64_t e = held; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}

}  // namespace
#endif
