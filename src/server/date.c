#include "server/date.h"

#include <stdio.h>
#include <time.h>

struct nib_date nib_prompt_date(const struct nib_server *server)
{
    struct nib_date date = {""};
    time_t now = time(NULL);
    struct tm today;
    if (server->options.date)
        snprintf(date.text, sizeof date.text, "%s", server->options.date);
    else if (localtime_r(&now, &today))
        strftime(date.text, sizeof date.text, "%Y-%m-%d", &today);
    return date;
}
