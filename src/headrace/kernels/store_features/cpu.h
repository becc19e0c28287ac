// Arguments of `store_features` and `load_features`.
#ifndef HEADRACE_FEATURES_H
#define HEADRACE_FEATURES_H
#include "kv_store.h"

struct hr_feature_args {
    float *x;  // [T, width]
    hr_kv kv;
    const int32_t *slots;  // [T]
    int64_t width;         // at most 2 heads * dim of the layer
};
HR_LAYOUT(hr_feature_args, x, kv, slots, width);
#endif
