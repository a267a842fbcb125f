package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
)

// SetTopicSetting changes one setting of a topic, by Kafka's name for it.
func (a *Admin) SetTopicSetting(ctx context.Context, name, setting, value string) error {
	rs, err := a.adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: setting, Value: &value}}, name)
	if err == nil {
		var r kadm.AlterConfigsResponse
		if r, err = rs.On(name, nil); err == nil {
			err = said(r.Err, r.ErrMessage)
		}
	}
	if err != nil {
		return fmt.Errorf("set %s of topic %s to %s: %w", setting, name, value, classed(err))
	}
	return nil
}
