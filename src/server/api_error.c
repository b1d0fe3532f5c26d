#include "server/api_error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8_text.h"

bool nib_api_fail(struct nib_api_error *error, unsigned status, const char *code, const char *param,
                  const char *format, ...)
{
    error->status = status;
    error->code = code;
    snprintf(error->param, sizeof error->param, "%s", param ? param : "");
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    nib_make_printable(error->param);
    nib_make_printable(error->message);
    return false;
}

bool nib_api_fail_status(struct nib_api_error *error, const char *param, const struct nib_error *err)
{
    switch (err->status) {
    case NIB_ERR_ARGUMENT:
    case NIB_ERR_FORMAT:
        return nib_api_fail(error, 400, "invalid_value", param, "%s", err->message);
    case NIB_ERR_UNSUPPORTED:
        return nib_api_fail(error, 400, "unsupported_value", param, "%s", err->message);
    case NIB_ERR_LIMIT:
        return nib_api_fail(error, 400, "context_length_exceeded", param, "%s", err->message);
    default:
        return nib_api_fail(error, 500, NULL, NULL, "%s", err->message);
    }
}

static const char *type_of(unsigned status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 429:
        return "rate_limit_error";
    default:
        return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

json_t *nib_api_error_json(const struct nib_api_error *error)
{
    return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", error->message, "type",
                     type_of(error->status), "param", error->param[0] ? error->param : NULL, "code", error->code);
}
