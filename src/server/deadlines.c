#include "server/deadlines.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/bandwidth.h"
#include "base/error.h"

#define BYTES_A_SECOND 65536.0 // that a client must keep up with
#define CHECK_SECONDS 0.25
#define DRAIN_SECONDS 0.02 // between two looks at what is thrown away
#define DRAIN_BYTES 65536  // at once
#define DRAIN_READS 16     // of a connection at a look
#define MOST_LINGERING 64  // connections; libmicrohttpd does not count them any more

struct nib_deadline {
    struct nib_deadline *next;
    struct nib_deadlines *owner;
    int socket;
    double due;    // seconds, as nib_clock; infinite: none
    bool receives; // of a request
    bool ended;    // and at the last look the client had nothing more to send
    bool lingers;
    bool removed; // and lingering: `socket` is ours
};

struct nib_deadlines {
    double patience;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    struct nib_deadline *first; // with the mutex, and so is all below
    int n_lingering;
    bool stopping;
};

// False when there is no more to come.
static bool drain(int socket)
{
    char waste[DRAIN_BYTES];
    ssize_t size = 1;
    for (int i = 0; i < DRAIN_READS && size > 0; i++)
        size = recv(socket, waste, sizeof waste, MSG_DONTWAIT);
    return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

static void drain_lingering_ones(struct nib_deadlines *deadlines)
{
    double now = nib_clock();
    for (struct nib_deadline **link = &deadlines->first; *link;) {
        struct nib_deadline *d = *link;
        if (!d->removed || (!deadlines->stopping && now <= d->due && drain(d->socket))) {
            link = &d->next;
            continue;
        }
        *link = d->next;
        deadlines->n_lingering--;
        close(d->socket);
        free(d);
    }
}

// Whether a client hung up in the middle of a request, two looks in a row: at one alone, the connection's thread may just have
// taken the request's end. libmicrohttpd does not see an end that came together with the last bytes.
static bool has_left(struct nib_deadline *d)
{
    char byte;
    bool ended = d->receives && recv(d->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0, left = ended && d->ended;
    d->ended = ended;
    return left;
}

// The connection's own thread then sees the end of the socket and closes it.
static void cut_off(struct nib_deadlines *deadlines)
{
    double now = nib_clock();
    for (struct nib_deadline *d = deadlines->first; d; d = d->next)
        if (!d->removed && (now > d->due || has_left(d))) {
            shutdown(d->socket, SHUT_RDWR);
            d->due = INFINITY;
            d->receives = false;
        }
}

static void *watch(void *context)
{
    struct nib_deadlines *deadlines = context;
    pthread_mutex_lock(&deadlines->mutex);
    while (!deadlines->stopping) {
        if (deadlines->first) {
            struct timespec until;
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += (long)((deadlines->n_lingering ? DRAIN_SECONDS : CHECK_SECONDS) * 1e9);
            until.tv_sec += until.tv_nsec / 1000000000;
            until.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&deadlines->wake, &deadlines->mutex, &until);
        } else {
            pthread_cond_wait(&deadlines->wake, &deadlines->mutex);
        }
        cut_off(deadlines);
        drain_lingering_ones(deadlines);
    }
    pthread_mutex_unlock(&deadlines->mutex);
    return NULL;
}

nib_status nib_deadlines_create(double patience, struct nib_deadlines **deadlines, struct nib_error *err)
{
    struct nib_deadlines *created = calloc(1, sizeof *created);
    if (!created)
        return nib_fail_memory(err, sizeof *created, "the server");
    created->patience = patience;
    pthread_mutex_init(&created->mutex, NULL);
    pthread_cond_init(&created->wake, NULL);
    if (pthread_create(&created->thread, NULL, watch, created)) {
        free(created);
        return nib_fail(err, NIB_ERR_MEMORY, "the thread that watches connections cannot be started");
    }
    *deadlines = created;
    return NIB_OK;
}

void nib_deadlines_free(struct nib_deadlines *deadlines)
{
    if (!deadlines)
        return;
    pthread_mutex_lock(&deadlines->mutex);
    deadlines->stopping = true;
    pthread_cond_signal(&deadlines->wake);
    pthread_mutex_unlock(&deadlines->mutex);
    pthread_join(deadlines->thread, NULL);
    pthread_cond_destroy(&deadlines->wake);
    pthread_mutex_destroy(&deadlines->mutex);
    free(deadlines);
}

struct nib_deadline *nib_deadline_add(struct nib_deadlines *deadlines, int socket)
{
    struct nib_deadline *added = malloc(sizeof *added);
    if (!added)
        return NULL;
    pthread_mutex_lock(&deadlines->mutex);
    *added =
        (struct nib_deadline){.next = deadlines->first, .owner = deadlines, .socket = socket, .due = INFINITY};
    deadlines->first = added;
    pthread_cond_signal(&deadlines->wake);
    pthread_mutex_unlock(&deadlines->mutex);
    return added;
}

// With the mutex held. The other end hears that there is no more, and is read from as long as it goes on.
static bool begin_lingering(struct nib_deadline *deadline)
{
    struct nib_deadlines *deadlines = deadline->owner;
    int socket = -1;
    if (deadline->lingers && deadlines->n_lingering < MOST_LINGERING)
        socket = fcntl(deadline->socket, F_DUPFD_CLOEXEC, 0);
    if (socket < 0)
        return false;
    shutdown(socket, SHUT_WR);
    deadline->socket = socket;
    deadline->due = nib_clock() + deadlines->patience;
    deadline->removed = true;
    deadlines->n_lingering++;
    pthread_cond_signal(&deadlines->wake);
    return true;
}

void nib_deadline_remove(struct nib_deadline *deadline)
{
    if (!deadline)
        return;
    struct nib_deadlines *deadlines = deadline->owner;
    pthread_mutex_lock(&deadlines->mutex);
    bool lingering = begin_lingering(deadline);
    if (!lingering) {
        struct nib_deadline **link = &deadlines->first;
        while (*link != deadline)
            link = &(*link)->next;
        *link = deadline->next;
    }
    pthread_mutex_unlock(&deadlines->mutex);
    if (!lingering)
        free(deadline);
}

void nib_deadline_linger(struct nib_deadline *deadline)
{
    if (!deadline)
        return;
    pthread_mutex_lock(&deadline->owner->mutex);
    deadline->lingers = true;
    pthread_mutex_unlock(&deadline->owner->mutex);
}

static void set_due(struct nib_deadline *deadline, double due, bool receives)
{
    pthread_mutex_lock(&deadline->owner->mutex);
    deadline->due = due;
    deadline->receives = receives;
    deadline->ended = false;
    pthread_mutex_unlock(&deadline->owner->mutex);
}

static double due_in(const struct nib_deadline *deadline, size_t bytes)
{
    return nib_clock() + deadline->owner->patience + (double)bytes / BYTES_A_SECOND;
}

void nib_deadline_receive(struct nib_deadline *deadline, size_t bytes)
{
    if (deadline)
        set_due(deadline, due_in(deadline, bytes), true);
}

void nib_deadline_send(struct nib_deadline *deadline, size_t bytes)
{
    if (deadline)
        set_due(deadline, due_in(deadline, bytes), false);
}

void nib_deadline_clear(struct nib_deadline *deadline)
{
    if (deadline)
        set_due(deadline, INFINITY, false);
}
