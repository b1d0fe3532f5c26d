#include "nibble/mx.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[NIB_DTYPE_COUNT] = {
    [NIB_F64] = {"F64", 8},         [NIB_F32] = {"F32", 4},         [NIB_F16] = {"F16", 2},
    [NIB_BF16] = {"BF16", 2},       [NIB_F8_E4M3] = {"F8_E4M3", 1}, [NIB_F8_E5M2] = {"F8_E5M2", 1},
    [NIB_F8_E8M0] = {"F8_E8M0", 1}, [NIB_I64] = {"I64", 8},         [NIB_I32] = {"I32", 4},
    [NIB_I16] = {"I16", 2},         [NIB_I8] = {"I8", 1},           [NIB_U64] = {"U64", 8},
    [NIB_U32] = {"U32", 4},         [NIB_U16] = {"U16", 2},         [NIB_U8] = {"U8", 1},
    [NIB_BOOL] = {"BOOL", 1},
};

size_t nib_dtype_size(enum nib_dtype dtype)
{
    return (unsigned)dtype < NIB_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *nib_dtype_name(enum nib_dtype dtype)
{
    return (unsigned)dtype < NIB_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}
