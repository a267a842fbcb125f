package consumer

// Config.Memory is divided so that a process stays within twice of it. What is
// in the collector's heap counts double, because the collector runs when that
// has doubled; the databases' blocks and memtables are outside of it.
//
//	            of Memory
//	databases   1/2    blocks, and a third of it memtables           not the collector's
//	            1/12   changes on their way to them
//	tables      1/4    decoded values, and a quarter of it filters
//	transaction 1/8    writes and output, and as much for how they are sent
//	input       1/16   messages fetched and not consumed
//	fetch       1/16   what is being fetched
//
// Half of it once, and seventeen twenty-fourths twice, leave a twelfth. While a
// shard restores, the batches on their way to its database take the place of its
// tables and transactions.
const (
	databasesPart   = 2
	tablesPart      = 4
	transactionPart = 8
	inputPart       = 16
	fetchPart       = 16
)

// What a shard has at least of each, however many there are, and of some at
// most: more would be no faster.
const (
	tablesLeast      = 64 << 10
	transactionLeast = 128 << 10
	inputLeast       = 64 << 10
	fetchLeast       = 64 << 10
	fetchMost        = 4 << 20
)

// databases is what all databases of the process share.
func (c Config) databases() int64 { return c.Memory / databasesPart }

// shares are a shard's parts of the budget, in bytes.
type shares struct{ tables, transaction, input, fetch int64 }

// sharesOf divides the budget among so many shards.
func (c Config) sharesOf(shards int) shares {
	n := int64(max(1, shards))
	return shares{
		tables:      max(c.Memory/tablesPart/n, tablesLeast),
		transaction: min(max(c.Memory/transactionPart/n, transactionLeast), c.TransactionBytes),
		input:       max(c.Memory/inputPart/n, inputLeast),
		fetch:       min(max(c.Memory/fetchPart/n, fetchLeast), fetchMost),
	}
}

// shares are those of one of the shards that this process has now.
func (a *App) shares() shares { return a.cfg.sharesOf(len(a.group.owned())) }
