#include "server/departures.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/error.h"

// A socket's number may be in use again when its event arrives, so events name a watch, which never comes again.
struct watch {
    struct watch *next;
    uint64_t number;
    struct nib_exchange *exchange;
};

struct nib_departures {
    int epoll;
    pthread_mutex_t mutex; // over the list
    struct watch *first;
    uint64_t last_number;
};

nib_status nib_departures_create(struct nib_departures **departures, struct nib_error *err)
{
    struct nib_departures *created = calloc(1, sizeof *created);
    if (!created)
        return nib_fail_memory(err, sizeof *created, "the server");
    created->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (created->epoll < 0) {
        free(created);
        return nib_fail(err, NIB_ERR_IO, "epoll is not to be had");
    }
    pthread_mutex_init(&created->mutex, NULL);
    *departures = created;
    return NIB_OK;
}

void nib_departures_free(struct nib_departures *departures)
{
    if (!departures)
        return;
    close(departures->epoll);
    pthread_mutex_destroy(&departures->mutex);
    free(departures);
}

uint64_t nib_departures_watch(struct nib_departures *departures, int socket, struct nib_exchange *exchange)
{
    struct watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return 0;
    watch->exchange = exchange;
    pthread_mutex_lock(&departures->mutex);
    watch->number = ++departures->last_number;
    watch->next = departures->first;
    departures->first = watch;
    struct epoll_event wanted = {.events = EPOLLRDHUP | EPOLLONESHOT, .data.u64 = watch->number};
    uint64_t number = watch->number;
    if (epoll_ctl(departures->epoll, EPOLL_CTL_ADD, socket, &wanted)) {
        departures->first = watch->next;
        free(watch);
        number = 0;
    }
    pthread_mutex_unlock(&departures->mutex);
    return number;
}

void nib_departures_forget(struct nib_departures *departures, int socket, uint64_t number)
{
    if (!number)
        return;
    epoll_ctl(departures->epoll, EPOLL_CTL_DEL, socket, NULL);
    pthread_mutex_lock(&departures->mutex);
    for (struct watch **link = &departures->first; *link; link = &(*link)->next)
        if ((*link)->number == number) {
            struct watch *found = *link;
            *link = found->next;
            free(found);
            break;
        }
    pthread_mutex_unlock(&departures->mutex);
}

void nib_departures_check(struct nib_departures *departures)
{
    struct epoll_event events[32];
    int count = epoll_wait(departures->epoll, events, 32, 0);
    for (int i = 0; i < count; i++) {
        pthread_mutex_lock(&departures->mutex);
        for (const struct watch *watch = departures->first; watch; watch = watch->next)
            if (watch->number == events[i].data.u64 && watch->exchange->cancel_work)
                watch->exchange->cancel_work(watch->exchange->work);
        pthread_mutex_unlock(&departures->mutex);
    }
}
