// What a client gets when a request cannot be served: OpenAI's error object, which names the field at fault.
#ifndef NIB_SERVER_API_ERROR_H
#define NIB_SERVER_API_ERROR_H

#include <jansson.h>
#include <stdbool.h>

#include "nibble/status.h"

struct nib_api_error {
    unsigned status;   // HTTP
    const char *code;  // "invalid_value", …; static, or NULL
    char param[160];   // "messages[2].content"; empty: no field
    char message[480]; // UTF-8
};

// Fills `error` and returns false, so that a check ends in `return nib_api_fail(…)`. What the text quotes is made
// printable.
bool nib_api_fail(struct nib_api_error *error, unsigned status, const char *code, const char *param,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));

// The library's own errors: the request's fault for NIB_ERR_ARGUMENT, _UNSUPPORTED and _LIMIT, the server's otherwise.
bool nib_api_fail_status(struct nib_api_error *error, const char *param, const struct nib_error *err);

// {"error": {"message", "type", "param", "code"}}; NULL when memory is out.
json_t *nib_api_error_json(const struct nib_api_error *error);

#endif
