#!/usr/bin/env python
# coding: utf-8

# # Regression on synthetic data
# Exported from `regression.ipynb`

# In[1]:


import torch
import torch.nn as nn
torch.manual_seed(0)
torch.__version__

# In[2]:


X = torch.randn(500, 3)
Y = X[:, 0:1]**2 + X[:, 1:2]
X.shape, Y.shape

# In[3]:


model = nn.Sequential(nn.Linear(3, 50), nn.ReLU(), nn.Linear(50, 1))
model

# In[5]:


losses = []
opt = torch.optim.Adam(model.parameters(), 1e-2)
def train(n):
    for i in range(n):
        global loss
        opt.zero_grad()
        loss = nn.MSELoss()(model(X), Y)
        loss.backward(); opt.step()
        losses.append(loss.item())

# In[8]:


train(10)
print(losses[-1])

# In[6]:


train(30)
print(losses[-1])

# In[9]:


# plt.plot(losses)
model(X)[:5], Y[:5]
