#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *nib_status_name(nib_status status)
{
    switch (status) {
    case NIB_OK:
        return "ok";
    case NIB_ERR_ARGUMENT:
        return "invalid argument";
    case NIB_ERR_IO:
        return "input/output error";
    case NIB_ERR_FORMAT:
        return "malformed file";
    case NIB_ERR_UNSUPPORTED:
        return "not supported";
    case NIB_ERR_NOT_FOUND:
        return "not found";
    case NIB_ERR_MEMORY:
        return "out of memory";
    case NIB_ERR_LIMIT:
        return "limit exceeded";
    case NIB_ERR_CANCELLED:
        return "cancelled";
    }
    return "unknown status";
}

// UTF-8 bytes pass; anything a terminal could act on does not.
static void replace_control_bytes(char *text)
{
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
}

nib_status nib_fail(struct nib_error *err, nib_status status, const char *format, ...)
{
    if (!err)
        return status;
    err->status = status;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    replace_control_bytes(err->message);
    return status;
}

nib_status nib_fail_context(struct nib_error *err, const char *format, ...)
{
    if (!err)
        return NIB_ERR_ARGUMENT;
    char old[NIB_ERROR_CAPACITY], prefix[NIB_ERROR_CAPACITY / 2];
    memcpy(old, err->message, sizeof old);
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    return nib_fail(err, err->status, "%s: %.*s", prefix, (int)sizeof prefix, old);
}
